"""Compute which share of the requests of each class met the latency objectives, with a confidence interval."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from schemas.side_events import Window

_DEFAULT_CLASSES: Final = {"interactive": "chat", "batch": "batch"}
"""The class that is assumed, by lane, if a request's account names no class."""

_Z_95: Final = 1.959964
"""Standard normal quantile of a two-sided interval of 95 %."""


class Attainment(NamedTuple):
    """How many requests of a class met its objectives.

    Attributes:
        wanted: Required share of good requests.
        judged: Number of requests that count. Denied and cancelled requests do not count.
        good: Number of the counted requests that were answered and met every objective.
    """

    service_class: str
    wanted: float
    judged: int
    good: int

    @property
    def attained(self) -> bool | None:
        """Return whether the share of good requests is at least ``wanted``; None if no request was counted."""
        return None if not self.judged else self.good >= self.wanted * self.judged

    @property
    def sure(self) -> bool:
        """Return whether ``wanted`` is outside the 95 % confidence interval of the share of good requests."""
        bounds = interval(self.good, self.judged)
        return bounds is not None and not bounds[0] < self.wanted <= bounds[1]

    def json(self) -> dict[str, Any]:
        return {
            "service_class": self.service_class,
            "wanted": self.wanted,
            "judged": self.judged,
            "good": self.good,
            "share": self.good / self.judged if self.judged else None,
            "interval_95": interval(self.good, self.judged),
            "attained": self.attained,
            "sure": self.sure,
        }

    def line(self) -> str:
        bounds = interval(self.good, self.judged)
        if bounds is None:
            return f"{self.service_class:11} no request was judged"
        answer = ("yes" if self.attained else "no") + ("" if self.sure else ", not sure")
        return (
            f"{self.service_class:11} attained: {answer} ({self.good / self.judged:.2%} of {self.judged} in time,"
            f" 95 %: {bounds[0]:.2%} to {bounds[1]:.2%}; {self.wanted:.2%} wanted)"
        )


def attainments(windows: Iterable[Window], *, since_at: int = 0) -> list[Attainment]:
    """Count, for each class, how many requests met the class's objectives. Classes without objectives are left out.

    Only windows that end later than ``since_at`` (microseconds since the epoch) are counted.
    """
    found: dict[str, Attainment] = {}
    newest: dict[str, int] = {}
    for window in windows:
        if window.wanted_share is None or window.end_at <= since_at:
            continue
        name = window.service_class or _DEFAULT_CLASSES[window.lane]
        before = found.get(name, Attainment(name, window.wanted_share, 0, 0))
        wanted = window.wanted_share if window.start_at >= newest.get(name, 0) else before.wanted
        newest[name] = max(window.start_at, newest.get(name, 0))
        sums = window.sums
        found[name] = Attainment(name, wanted, before.judged + sums.judged, before.good + sums.good)
    return [found[name] for name in sorted(found)]


def interval(good: int, judged: int) -> tuple[float, float] | None:
    """Return Wilson's 95 % confidence interval for the share of good requests; None if ``judged`` is 0."""
    if not judged:
        return None
    share, z2 = good / judged, _Z_95**2
    middle = (share + z2 / (2 * judged)) / (1 + z2 / judged)
    half = _Z_95 / (1 + z2 / judged) * (share * (1 - share) / judged + z2 / (4 * judged**2)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)
