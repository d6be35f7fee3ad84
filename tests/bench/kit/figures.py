"""Compute figures of a set of answers: percentiles, rates and errors. This module does no I/O and reads no clock."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

ERROR_CHARS: Final = 160
MOST_ERRORS: Final = 20
"""Maximum number of different error messages that are counted separately."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer as the load client received it. All times are in seconds of one clock.

    Attributes:
        intended_s: When the request was due. Latency counts from this time, even if the request was sent later.
        sent_s: When the request was sent.
        arrivals_s: When each chunk with text arrived.
        ended_s: When the answer ended or failed.
        text: The whole text of the answer.
        finished: Whether the server sent ``[DONE]``.
        error: What went wrong; None if nothing went wrong.
    """

    intended_s: float
    sent_s: float = 0.0
    arrivals_s: "array[float]" = field(default_factory=lambda: array("d"))
    ended_s: float = 0.0
    text: str = ""
    finished: bool = False
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer has text and ended with ``[DONE]``, without an error."""
        return self.error is None and self.finished and bool(self.arrivals_s)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which the given share of the values lies.

    The value is interpolated linearly between the two nearest ranks. ``share`` is from 0 to 1.
    """
    ranked = sorted(values)
    place = (len(ranked) - 1) * share
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


def spread(values_s: Iterable[float]) -> dict[str, float] | None:
    """Return p50, p95, p99 and maximum of times in seconds, converted to milliseconds; None if there are no times."""
    values = list(values_s)
    if not values:
        return None
    named = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {name: round(percentile(values, share) * 1e3, 2) for name, share in named.items()}


def summary(answers: Sequence[Answer], wall_s: float, expected_text: str | None = None) -> dict[str, Any]:
    """Return the figures of one run.

    Args:
        answers: All answers of the run, including the failed ones.
        wall_s: Duration of the run in seconds.
        expected_text: The text that every answer must have; None if it is not known.
    """
    good = [answer for answer in answers if answer.complete]
    chunks = sum(len(answer.arrivals_s) for answer in answers)
    return {
        "requests": len(answers),
        "ok": len(good),
        "errors": errors(answers),
        "wrong_text": sum(expected_text is not None and answer.text != expected_text for answer in good),
        "wall_s": round(wall_s, 3),
        "chunks": chunks,
        "chunks_per_s": round(chunks / wall_s, 1),
        "chunks_per_answer": sorted({len(answer.arrivals_s) for answer in good}),
        "ttft_ms": spread(answer.arrivals_s[0] - answer.intended_s for answer in good),
        "gap_ms": spread(later - earlier for answer in good for earlier, later in pairwise(answer.arrivals_s)),
        "total_ms": spread(answer.ended_s - answer.intended_s for answer in good),
        "sent_late_ms": spread(answer.sent_s - answer.intended_s for answer in answers),
    }


def errors(answers: Iterable[Answer]) -> dict[str, int]:
    """Count the incomplete answers by error message. If there are many different messages, some count as ``others``."""
    found: Counter[str] = Counter()
    for answer in answers:
        if not answer.complete:
            kind = (answer.error or "ended without [DONE] or without text")[:ERROR_CHARS]
            found[kind if kind in found or len(found) < MOST_ERRORS else "others"] += 1
    return dict(found)
