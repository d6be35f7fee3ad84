"""The budgets that limit the number and the cost of cloud attempts and retries within a minute. No I/O, no clock.

The router computes from the log what was spent. So a restart does not reset the budgets.
"""

from dataclasses import dataclass
from typing import Final

from services.router.config import FallbackLimits
from services.router.state.breaker import Breaker

WINDOW_S: Final = 60


@dataclass(slots=True)
class _Second:
    requests: int = 0
    fallbacks: int = 0
    usd: float = 0.0


class SpendTracker:
    """Counts the requests of one partition, and either the fallbacks (attempts in the cloud) or the retries.

    Times are microseconds since the epoch.
    """

    # In the code of this class, retries are called "fallbacks" too.

    def __init__(self, budget: "FallbackBudget") -> None:
        self._budget = budget
        self._seconds: dict[int, _Second] = {}
        self._reserved: dict[str, float] = {}
        self._summed_s = -1
        self._sum = _Second()  # the totals at `_summed_s`; a burst of requests needs them often in one second

    def add_request(self, at_us: int) -> None:
        self._at(at_us).requests += 1

    def allows(self, usd: float, now_us: int) -> bool:
        return self._budget.allows(usd, now_us)

    def reserve(self, request_id: str, usd: float) -> None:
        """Count one more attempt, with the estimated price ``usd``, until ``release`` is called.

        Call ``reserve`` before the ``Cutover`` is written, and ``release`` when the ``Cutover`` was read back.
        """
        self._reserved[request_id] = usd

    def release(self, request_id: str) -> None:
        self._reserved.pop(request_id, None)

    def spend(self, usd: float, at_us: int) -> None:
        second = self._at(at_us)
        second.fallbacks += 1
        second.usd += usd

    def correct(self, usd: float, at_us: int) -> None:
        """Correct the price of a fallback by ``usd``, which is the actual price minus the estimated price."""
        # ``at_us`` is the time that was passed to ``spend``.
        if at_us // 1_000_000 in self._seconds:
            second = self._at(at_us)
            second.usd = max(0.0, second.usd + usd)

    def totals(self, now_us: int) -> tuple[int, int, float]:
        """Return three numbers for the last ``WINDOW_S`` seconds.

        * The number of requests.
        * The number of fallbacks or retries. Reserved ones (see ``reserve``) count, too.
        * The price of these fallbacks or retries, in US dollars.
        """
        now_s = now_us // 1_000_000
        if now_s != self._summed_s:
            for second in [s for s in self._seconds if not now_s - WINDOW_S < s <= now_s + 1]:
                del self._seconds[second]
            spent = self._seconds.values()
            requests, fallbacks = sum(s.requests for s in spent), sum(s.fallbacks for s in spent)
            self._sum = _Second(requests, fallbacks, sum(s.usd for s in spent))
            self._summed_s = now_s
        reserved = self._reserved
        return self._sum.requests, self._sum.fallbacks + len(reserved), self._sum.usd + sum(reserved.values())

    def _at(self, at_us: int) -> _Second:
        self._summed_s = -1
        if len(self._seconds) > 4 * WINDOW_S:  # only while a long log is read, and then nothing calls `totals`
            for old in sorted(self._seconds)[:-WINDOW_S]:
                del self._seconds[old]
        return self._seconds.setdefault(at_us // 1_000_000, _Second())


class FallbackBudget:
    """A budget for further attempts. All partitions of a router share it.

    A router has two of these budgets: one for fallbacks, one for retries.
    """

    def __init__(self, limits: FallbackLimits) -> None:
        self.limits = limits
        self._trackers: list[SpendTracker] = []
        self._refused_us = -WINDOW_S * 1_000_000

    def open(self) -> SpendTracker:
        self._trackers.append(SpendTracker(self))
        return self._trackers[-1]

    def close(self, tracker: SpendTracker) -> None:
        self._trackers.remove(tracker)

    def allows(self, usd: float, now_us: int) -> bool:
        """Return whether one more attempt at this estimated price is within the limits."""
        fallbacks, most, spent_usd = self._totals(now_us)
        fits = fallbacks < most and (self.limits.usd is None or spent_usd + usd <= self.limits.usd)
        if not fits:
            self._refused_us = now_us
        return fits

    def used(self, now_us: int) -> float:
        """Return the used fraction of the allowed attempts or of the allowed money, whichever is larger.

        For one minute after an attempt was refused, return at least 1. While no attempts are allowed, ignore attempts
        and refusals, and return the used fraction of the allowed money.
        """
        fallbacks, most, spent_usd = self._totals(now_us)
        of_requests = fallbacks / most if most else 0.0
        refuses = bool(most) and now_us - self._refused_us < WINDOW_S * 1_000_000
        return max(float(refuses), of_requests, spent_usd / self.limits.usd if self.limits.usd else 0.0)

    def _totals(self, now_us: int) -> tuple[int, int, float]:
        requests = fallbacks = 0
        spent_usd = 0.0
        for tracker in self._trackers:
            totals = tracker.totals(now_us)
            requests += totals[0]
            fallbacks += totals[1]
            spent_usd += totals[2]
        return fallbacks, max(self.limits.free, int(self.limits.ratio * requests)), spent_usd


@dataclass(frozen=True, slots=True)
class AttemptBudgets:
    cloud: SpendTracker
    retries: SpendTracker
    breaker: Breaker

    def release(self, request_id: str) -> None:
        self.cloud.release(request_id)
        self.retries.release(request_id)
