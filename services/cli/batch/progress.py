"""Format a job's progress as one line. No I/O, no clock."""

from dataclasses import dataclass, field
from typing import Final

from schemas.batches import BatchTotals

WINDOW_S: Final = 30.0
"""Period over which the rate is measured."""

BAR_CHARS: Final = 24


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Prices of a million tokens, in US dollars.

    Attributes:
        input: Price of prompt tokens; None if unknown.
        output: Price of completion tokens; None if unknown.
        cached_input: Price of cached prompt tokens; None if it equals ``input``.
    """

    input: float | None = None
    output: float | None = None
    cached_input: float | None = None

    def cost(self, totals: BatchTotals) -> float | None:
        """Return the cost of the tokens in US dollars; None if a price is unknown."""
        if self.input is None or self.output is None:
            return None
        cached = self.input if self.cached_input is None else self.cached_input
        fresh = totals.prompt_tokens - totals.cached_tokens
        return (fresh * self.input + totals.cached_tokens * cached + totals.completion_tokens * self.output) / 1e6


@dataclass(slots=True)
class ProgressLine:
    prices: TokenPrices = field(default_factory=TokenPrices)
    _points: list[tuple[float, int]] = field(default_factory=list)

    def note(self, totals: BatchTotals, now_s: float) -> None:
        self._points.append((now_s, totals.completed + totals.failed))
        while len(self._points) > 2 and self._points[1][0] < now_s - WINDOW_S:
            del self._points[0]

    @property
    def rate(self) -> float:
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def text(self, totals: BatchTotals, status: str) -> str:
        done, lines = totals.completed + totals.failed, totals.lines
        if not lines:
            return status
        filled = BAR_CHARS * done // lines
        parts = [f"{status} [{'#' * filled}{'.' * (BAR_CHARS - filled)}] {done:,}/{lines:,}"]
        if totals.failed:
            parts.append(f"{totals.failed:,} failed")
        if self._points and self.rate > 0:
            parts.append(f"{self.rate:.1f}/s")
            if status == "in_progress":
                parts.append(f"ETA {duration((lines - done) / self.rate)}")
        parts.append(f"{totals.prompt_tokens + totals.completion_tokens:,} tokens")
        if totals.prompt_tokens:
            parts.append(f"{totals.cached_tokens / totals.prompt_tokens:.0%} cached")
        if (cost := self.prices.cost(totals)) is not None:
            parts.append(f"${cost:.2f}")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"
