"""Rate limits per tenant: the generic cell rate algorithm (GCRA), whose state is one timestamp. Pure."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``per_minute`` requests on average, ``burst`` at once."""

    per_minute: int
    burst: int

    @property
    def interval_us(self) -> int:
        """Time between two requests at the allowed rate, in microseconds."""
        return 60_000_000 // self.per_minute

    @property
    def tolerance_us(self) -> int:
        """How far a burst may run ahead of the rate, in microseconds."""
        return self.interval_us * self.burst


@dataclass(frozen=True, slots=True)
class RateDecision:
    """The result of ``gcra``: the timestamp to keep, and the wait before a request may pass (0: this one passes)."""

    arrival_us: int
    wait_us: int


def gcra(rate: Rate, arrival_us: int, now_us: int) -> RateDecision:
    """Decide on a request; ``arrival_us`` is the theoretical arrival time kept from the last decision, 0 at first."""
    following = max(arrival_us, now_us) + rate.interval_us
    wait_us = following - now_us - rate.tolerance_us
    return RateDecision(arrival_us, wait_us) if wait_us > 0 else RateDecision(following, 0)


class LocalLimiter:
    """The rate limit within this process, for the ``size`` tenants with the latest requests."""

    def __init__(self, rate: Rate, size: int = 10_000) -> None:
        self._rate = rate
        self._size = size
        self._arrivals: OrderedDict[str, int] = OrderedDict()

    def wait_us(self, tenant: str, now_us: int) -> int:
        """Return 0 if the request passes, otherwise how long to wait, in microseconds."""
        decision = gcra(self._rate, self._arrivals.pop(tenant, 0), now_us)
        self._arrivals[tenant] = decision.arrival_us
        if len(self._arrivals) > self._size:
            self._arrivals.popitem(last=False)
        return decision.wait_us
