"""The fallback budget: how many requests, and how much money, may go to the cloud in a minute. Pure.

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


class Ledger:
    """What one shard asked and spent; it is counted anew when the shard is folded anew.

    What is on its way to the log counts as spent. Pure: times are arguments, in microseconds since the epoch.
    """

    def __init__(self, budget: "Budget") -> None:
        self._budget = budget
        self._seconds: dict[int, _Second] = {}
        self._reserved: dict[str, float] = {}

    def ask(self, at_us: int) -> None:
        """A request came."""
        self._at(at_us).requests += 1

    def allows(self, usd: float, now_us: int) -> bool:
        """Whether one more fallback of this estimated price may be made, by all shards' ledgers."""
        return self._budget.allows(usd, now_us)

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

    def totals(self, now_us: int) -> tuple[int, int, float]:
        """Requests, fallbacks and US dollars of the last ``WINDOW_S`` seconds."""
        now_s = now_us // 1_000_000
        for second in [s for s in self._seconds if not now_s - WINDOW_S < s <= now_s + 1]:
            del self._seconds[second]
        spent = self._seconds.values()
        return (
            sum(s.requests for s in spent),
            sum(s.fallbacks for s in spent) + len(self._reserved),
            sum(s.usd for s in spent) + sum(self._reserved.values()),
        )

    def _at(self, at_us: int) -> _Second:
        if len(self._seconds) > 4 * WINDOW_S:  # only while a long log is folded: nobody asks what is allowed
            for old in sorted(self._seconds)[:-WINDOW_S]:
                del self._seconds[old]
        return self._seconds.setdefault(at_us // 1_000_000, _Second())


class Budget:
    """What all shards of a router may spend together."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._ledgers: list[Ledger] = []

    def open(self) -> Ledger:
        """A new shard's ledger."""
        self._ledgers.append(Ledger(self))
        return self._ledgers[-1]

    def close(self, ledger: Ledger) -> None:
        """The shard belongs to another router now."""
        self._ledgers.remove(ledger)

    def allows(self, usd: float, now_us: int) -> bool:
        """Whether one more fallback of this estimated price may be made."""
        totals = [ledger.totals(now_us) for ledger in self._ledgers]
        requests, fallbacks = sum(t[0] for t in totals), sum(t[1] for t in totals)
        if fallbacks + 1 > max(self.limits.free, int(self.limits.ratio * requests)):
            return False
        return self.limits.usd is None or sum(t[2] for t in totals) + usd <= self.limits.usd
