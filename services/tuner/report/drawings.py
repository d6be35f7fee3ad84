"""Draw plots as SVG."""

from collections.abc import Sequence
from html import escape

from services.physics.statistics import Interval

WIDTH = 640
LABEL = 190
ROW = 26


def forest(rows: Sequence[tuple[str, Interval, bool]], *, title: str, margin: float) -> str:
    """Return a forest plot of gains as SVG; empty if there are no rows. Filled circles mark kept changes."""
    if not rows:
        return ""
    ends = [min(1.0, max(-1.0, end)) for _, each, _ in rows for end in (each.low, each.high)]
    low, high = min(-0.1, *ends), max(0.1, *ends)
    height = 60 + ROW * len(rows)

    def across(gain: float) -> float:
        return LABEL + (min(high, max(low, gain)) - low) / (high - low) * (WIDTH - LABEL - 20)

    parts = [
        _open(height, title),
        _line(across(0), 30, across(0), height - 24, "axis"),
        _line(across(margin), 30, across(margin), height - 24, "margin"),
    ]
    for at, (name, each, kept) in enumerate(rows):
        y = 44 + ROW * at
        colour = "kept" if kept else "other"
        parts += [
            f'<text x="0" y="{y + 4}">{escape(name[:28])}</text>',
            _line(across(each.low), y, across(each.high), y, colour),
            (
                f'<circle cx="{across(each.value):.1f}" cy="{y}" r="5" class="{colour}"><title>{each.value:+.1%}'
                f" ({each.low:+.1%} to {each.high:+.1%})</title></circle>"
            ),
        ]
    for gain in (low, 0.0, high):
        parts.append(f'<text x="{across(gain):.0f}" y="{height - 6}" text-anchor="middle">{gain:+.0%}</text>')
    return "".join([*parts, "</svg>"])


def lines_with_bars(points: Sequence[tuple[int, Interval]], *, title: str, mark: float) -> str:
    if not points:
        return ""
    height = 260
    top = max(min(each.high, 3 * each.value) for _, each in points) or 1.0
    gap = (WIDTH - 80) / max(1, len(points) - 1)

    def up(value: float) -> float:
        return height - 40 - min(1.0, max(0.0, value / top)) * (height - 80)

    parts = [_open(height, title)]
    path = " ".join(f"{60 + gap * at:.1f},{up(each.value):.1f}" for at, (_, each) in enumerate(points))
    parts.append(f'<polyline points="{path}" class="kept" fill="none"/>')
    for at, (size, each) in enumerate(points):
        x = 60 + gap * at
        parts += [
            _line(x, up(each.low), x, up(each.high), "other"),
            f'<circle cx="{x:.1f}" cy="{up(each.value):.1f}" r="4" class="kept"/>',
            f'<text x="{x:.0f}" y="{height - 18}" text-anchor="middle">{size}</text>',
        ]
        if size == mark:
            parts.append(_line(x, 36, x, height - 36, "margin"))
    parts += [f'<text x="0" y="{up(top):.0f}">{top:.0f}</text>', f'<text x="0" y="{up(0):.0f}">0</text>']
    return "".join([*parts, "</svg>"])


def _open(height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f'<text x="0" y="16" class="title">{escape(title)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'
