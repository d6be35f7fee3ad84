"""Styled text, rendered as ANSI, plain text or SVG. Pure functions."""

import html
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, Literal, NamedTuple

Style = Literal["plain", "dim", "void", "new", "good", "bad", "warn", "head"]


class StyledSpan(NamedTuple):
    text: str
    style: Style = "plain"


StyledLine = list[StyledSpan]

_ANSI: Final[dict[Style, str]] = {
    "plain": "", "dim": "\x1b[2m", "void": "\x1b[9;31m", "new": "\x1b[33m", "good": "\x1b[32m", "bad": "\x1b[31m",
    "warn": "\x1b[33m", "head": "\x1b[1;36m",
}  # fmt: skip
_RESET: Final = "\x1b[0m"

_COLOURS: Final[dict[Style, str]] = {
    "plain": "#d7dde4", "dim": "#8592a3", "void": "#d0646b", "new": "#e2b75a", "good": "#6cc08b", "bad": "#e06c75",
    "warn": "#e2b75a", "head": "#7cc5e8",
}  # fmt: skip
_GROUND: Final = "#12171d"
_CHAR: Final = 7.8
"""Width of a character at 13 px, in pixels. It is written into the SVG, so that text has this width in every font."""
_ROW: Final = 18
_MARGIN: Final = 16


def line_width(line: Iterable[StyledSpan]) -> int:
    return sum(len(span.text) for span in line)


def wrap_spans(spans: Iterable[StyledSpan], columns: int) -> list[StyledLine]:
    lines: list[StyledLine] = [[]]
    room = columns
    for word in _words(spans):
        if len(word.text) > room and lines[-1]:
            if not word.text.strip():
                continue
            lines.append([])
            room = columns
        text = word.text if lines[-1] else word.text.lstrip(" ")
        while len(text) > room:
            lines[-1].append(StyledSpan(text[:room], word.style))
            lines.append([])
            text, room = text[room:], columns
        if text:
            lines[-1].append(StyledSpan(text, word.style))
            room -= len(text)
    return [_joined(line) for line in lines]


def _joined(line: StyledLine) -> StyledLine:
    return [
        StyledSpan("".join(span.text for span in same), style) for style, same in groupby(line, lambda span: span.style)
    ]


def pad_line(line: Sequence[StyledSpan], columns: int) -> StyledLine:
    return [*line, StyledSpan(" " * max(0, columns - line_width(line)))]


def to_ansi(line: Iterable[StyledSpan]) -> str:
    return "".join(f"{_ANSI[span.style]}{span.text}{_RESET}" if _ANSI[span.style] else span.text for span in line)


def to_plain_text(line: Iterable[StyledSpan]) -> str:
    return "".join(span.text for span in line).rstrip()


def to_svg(lines: Sequence[StyledLine], columns: int) -> str:
    wide, high = round(columns * _CHAR + 2 * _MARGIN), len(lines) * _ROW + 2 * _MARGIN
    rows = "\n".join(_row(line, number) for number, line in enumerate(lines) if line_width(line))
    styles = "\n".join(f".{style} {{ fill: {colour} }}" for style, colour in _COLOURS.items())
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="railbus demo">
<style>
text {{ font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }}
{styles}
.void {{ text-decoration: line-through }}
.head {{ font-weight: bold }}
</style>
<rect width="{wide}" height="{high}" rx="8" fill="{_GROUND}"/>
{rows}
</svg>
"""


def _row(line: StyledLine, number: int) -> str:
    y = _MARGIN + number * _ROW + 13
    parts = []
    column = 0
    for span in line:
        text = span.text.rstrip(" ") if span.style == "plain" else span.text
        if text.strip():
            x, length = _MARGIN + column * _CHAR, len(text) * _CHAR
            parts.append(
                f'<text x="{x:.1f}" y="{y}" textLength="{length:.1f}" class="{span.style}">{html.escape(text)}</text>'
            )
        column += len(span.text)
    return "".join(parts)


def _words(spans: Iterable[StyledSpan]) -> Iterator[StyledSpan]:
    for span in spans:
        start = 0
        for at in range(1, len(span.text) + 1):
            ends = at == len(span.text) or (span.text[at] == " " and span.text[at - 1] != " ")
            if ends:
                yield StyledSpan(span.text[start:at], span.style)
                start = at
