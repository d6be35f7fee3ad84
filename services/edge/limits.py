"""How many requests a tenant may make: the generic cell rate algorithm, whose whole state is one time."""

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
        """How far ahead of the rate a burst may run."""
        return self.interval_us * self.burst


@dataclass(frozen=True, slots=True)
class Decided:
    """Whether a request may pass; ``wait_us`` is when the next one could, 0 if this one did."""

    arrival_us: int
    wait_us: int


def decide(rate: Rate, arrival_us: int, now_us: int) -> Decided:
    """One request at ``now_us``; ``arrival_us`` is the theoretical arrival time kept from the last one, 0 at first."""
    following = max(arrival_us, now_us) + rate.interval_us
    wait_us = following - now_us - rate.tolerance_us
    return Decided(arrival_us, wait_us) if wait_us > 0 else Decided(following, 0)


class LocalLimiter:
    """The limit of this process alone, for at most ``size`` tenants; the one that asked longest ago is forgotten."""

    def __init__(self, rate: Rate, size: int = 10_000) -> None:
        self._rate = rate
        self._size = size
        self._arrivals: OrderedDict[str, int] = OrderedDict()

    def wait_us(self, tenant: str, now_us: int) -> int:
        """0 when the request may pass, else how long to wait, in microseconds."""
        decided = decide(self._rate, self._arrivals.pop(tenant, 0), now_us)
        self._arrivals[tenant] = decided.arrival_us
        if len(self._arrivals) > self._size:
            self._arrivals.popitem(last=False)
        return decided.wait_us
