"""Rate limits per tenant: the generic cell rate algorithm (GCRA), whose state is one timestamp. Pure."""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``per_minute`` units on average, such as requests or tokens, ``burst`` at once."""

    per_minute: int
    burst: int

    def cost_us(self, units: int = 1) -> int:
        """Return how long the units take at the allowed rate, in microseconds. More than a burst counts as a burst."""
        return min(units, self.burst) * 60_000_000 // self.per_minute

    @property
    def tolerance_us(self) -> int:
        """How far a burst may run ahead of the rate, in microseconds."""
        return self.cost_us(self.burst)


@dataclass(frozen=True, slots=True)
class RateDecision:
    """The result of ``gcra``: the timestamp to keep, and the wait before the units may pass (0: they pass)."""

    arrival_us: int
    wait_us: int


def gcra(rate: Rate, arrival_us: int, now_us: int, units: int = 1) -> RateDecision:
    """Decide on units; ``arrival_us`` is the theoretical arrival time kept from the last decision, 0 at first."""
    following = max(arrival_us, now_us) + rate.cost_us(units)
    wait_us = following - now_us - rate.tolerance_us
    return RateDecision(arrival_us, wait_us) if wait_us > 0 else RateDecision(following, 0)


class LocalLimiter:
    """The rate limit within this process, for the ``size`` tenants with the latest requests."""

    def __init__(self, rate: Rate, size: int = 10_000) -> None:
        self._rate = rate
        self._size = size
        self._arrivals: OrderedDict[str, int] = OrderedDict()

    def wait_us(self, tenant: str, now_us: int, units: int = 1) -> int:
        """Return 0 if the units pass, otherwise how long to wait, in microseconds."""
        decision = gcra(self._rate, self._arrivals.pop(tenant, 0), now_us, units)
        self._arrivals[tenant] = decision.arrival_us
        if len(self._arrivals) > self._size:
            self._arrivals.popitem(last=False)
        return decision.wait_us

    def give_back(self, tenant: str, cost_us: int) -> None:
        """Undo a part of what the tenant was charged."""
        if tenant in self._arrivals:
            self._arrivals[tenant] -= cost_us
