"""The fallback budget: how many requests, and how much money, may go to the cloud within a minute.

It is counted from the log (requests, and the cutovers that were effective), so a router that starts knows what was
spent.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be spent within ``WINDOW_S`` seconds, by all routers together.

    Attributes:
        ratio: Fallbacks per request.
        free: So many fallbacks are allowed however few requests there were.
        usd: US dollars; None for no limit.
    """

    ratio: float = 0.25
    free: int = 20
    usd: float | None = None

    def share(self, part: float) -> "Limits":
        """The limits of a router that holds this part of the partitions."""
        usd = None if self.usd is None else self.usd * part
        return Limits(ratio=self.ratio, free=ceil(self.free * part), usd=usd)


@dataclass(slots=True)
class _Second:
    requests: int = 0
    fallbacks: int = 0
    usd: float = 0.0


class Budget:
    """Pure: times are arguments, in microseconds since the epoch. What is on its way to the log counts as spent."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._seconds: dict[int, _Second] = {}
        self._reserved: dict[str, float] = {}

    def ask(self, at_us: int) -> None:
        """A request came."""
        self._at(at_us).requests += 1

    def allows(self, usd: float, now_us: int) -> bool:
        """Whether one more fallback of this estimated price may be made."""
        now_s = now_us // 1_000_000
        for second in [s for s in self._seconds if not now_s - WINDOW_S < s <= now_s + 1]:
            del self._seconds[second]
        spent = self._seconds.values()
        calls = sum(s.fallbacks for s in spent) + len(self._reserved)
        allowed = max(self.limits.free, int(self.limits.ratio * sum(s.requests for s in spent)))
        if calls + 1 > allowed:
            return False
        limit = self.limits.usd
        return limit is None or sum(s.usd for s in spent) + sum(self._reserved.values()) + usd <= limit

    def reserve(self, request_id: str, usd: float) -> None:
        """A cutover was written; whether it is effective, the log will tell."""
        self._reserved[request_id] = usd

    def release(self, request_id: str) -> None:
        """The log told; or the request has ended before it could."""
        self._reserved.pop(request_id, None)

    def spend(self, usd: float, at_us: int) -> None:
        """An effective cutover to the cloud, at its estimated price."""
        second = self._at(at_us)
        second.fallbacks += 1
        second.usd += usd

    def correct(self, usd: float, at_us: int) -> None:
        """What the fallback of that moment cost more than was estimated; negative when it was less."""
        second = self._seconds.get(at_us // 1_000_000)
        if second is not None:
            second.usd = max(0.0, second.usd + usd)

    def _at(self, at_us: int) -> _Second:
        if len(self._seconds) > 4 * WINDOW_S:  # only while a long log is folded: nobody asks what is allowed
            for old in sorted(self._seconds)[:-WINDOW_S]:
                del self._seconds[old]
        return self._seconds.setdefault(at_us // 1_000_000, _Second())
