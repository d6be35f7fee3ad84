"""Who may work next: tenants take turns, and a turn is short, so that one tenant's texts do not delay another's.

Batch requests have a turn when no interactive one waits for it.
"""

import asyncio
import time
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Final

from services.processor.fair_queue import FairQueue

SLICE_WORK: Final = 1_024
"""About how many characters are read in one turn, or as much other work: a fifth of a millisecond of prose."""

PIECE_CHARS: Final = 16
"""After how many characters their cost is checked: some text costs a hundred times as much as prose."""

DEAR_PIECE_CHARS: Final = 4
"""The same in a dear stretch of text."""

DEAR_WORK: Final = 32
"""From this cost of a character on, a stretch is dear."""

CREDIT_S: Final = 0.5
"""How far a tenant may be ahead of its share of this process's time: the longest prompt takes half a second."""

RECENT_S: Final = 10.0
"""For how long after its last turn a tenant counts as one that others must leave time for."""


class TenantShares:
    """Which tenants had more than their share of the time, and rest until they are back at it. Pure.

    Half of the time is for all tenants together. One that is alone has no share: it never rests.

    Args:
        credit_s: How far a tenant may be ahead of its share.
    """

    def __init__(self, credit_s: float = CREDIT_S) -> None:
        self._credit_s = credit_s
        self._even_at_s: dict[str, float] = {}  # when the tenant's turns will have been no more than its share
        self._recent_s: dict[str, float] = {}  # when each tenant's last turn ended

    def had(self, tenant: str, took_s: float, now_s: float) -> None:
        """Charge a turn that ended now."""
        self._forget(now_s)
        self._recent_s[tenant] = now_s
        begun_s = now_s - took_s
        sharing = len(self._even_at_s.keys() | {tenant})
        self._even_at_s[tenant] = max(self._even_at_s.get(tenant, begun_s), begun_s) + 2 * sharing * took_s

    def resting(self, now_s: float) -> dict[str, float]:
        """Return the tenants that rest, and until when."""
        self._forget(now_s)
        if len(self._recent_s) < 2:
            return {}
        until_s = {tenant: even_at_s - self._credit_s for tenant, even_at_s in self._even_at_s.items()}
        return {tenant: rested_s for tenant, rested_s in until_s.items() if rested_s > now_s}

    def had_most(self, tenant: str, now_s: float) -> bool:
        """Return whether no other tenant that was there lately had as much as this one."""
        self._forget(now_s)
        others = [at_s for name, at_s in self._even_at_s.items() if name != tenant]
        return self._even_at_s.get(tenant, now_s) > max(others, default=now_s)

    def has_others(self, tenant: str, now_s: float) -> bool:
        """Return whether another tenant had a turn lately."""
        self._forget(now_s)
        return bool(self._recent_s.keys() - {tenant})

    def _forget(self, now_s: float) -> None:
        even, recent = self._even_at_s, self._recent_s
        if any(even_at_s <= now_s for even_at_s in even.values()):
            self._even_at_s = {tenant: even_at_s for tenant, even_at_s in even.items() if even_at_s > now_s}
        if any(at_s <= now_s - RECENT_S for at_s in recent.values()):
            self._recent_s = {tenant: at_s for tenant, at_s in recent.items() if at_s > now_s - RECENT_S}


class Turns:
    """Hands out turns, first come, first served for each tenant of a lane. The service bounds how many wait.

    With one place, a turn is time of this process. A request passes through some thirty callbacks of the event loop,
    and would take thirty slices if one ran between every two of them. So where several tenants are there, one that had
    more than its share rests.

    With more places, a turn is work elsewhere. Where several tenants are there, none has all places, so that nobody
    waits until the work of others has ended; and the one that had most leaves the first place to the others.

    Args:
        places: How many turns are taken at once.
        credit_s: See ``TenantShares``.
    """

    def __init__(self, places: int = 1, *, credit_s: float = CREDIT_S) -> None:
        self._places = places
        self._free = list(range(places))
        self._held: Counter[str] = Counter()
        self._shares = TenantShares(credit_s)
        self._waiting: FairQueue[asyncio.Future[int]] = FairQueue()
        self._waiting_batch: FairQueue[asyncio.Future[int]] = FairQueue()
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(self, tenant: str, *, batch: bool = False) -> AsyncIterator[int]:
        """Wait for a turn, a place, and hold it. The event loop reads its sockets before the next one."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[int] = loop.create_future()
        (self._waiting_batch if batch else self._waiting).put(tenant, mine)
        loop.call_soon(self._hand_out)
        try:
            place = await mine
            begun_s = time.perf_counter()
            try:
                yield place
            finally:
                now_s = time.perf_counter()
                self._shares.had(tenant, now_s - begun_s, now_s)
        finally:
            if mine.done() and not mine.cancelled():
                insort(self._free, mine.result())
                self._held[tenant] -= 1
                if not self._held[tenant]:
                    del self._held[tenant]
                loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        now_s = time.perf_counter()
        resting = self._shares.resting(now_s) if self._places == 1 else {}
        while self._free:
            turn = self._next(resting or self._full(now_s))
            if turn is None:
                break
            tenant, mine = turn
            if not mine.done():  # whoever was cancelled waits no more
                leaves_first = self._shares.has_others(tenant, now_s) and self._shares.had_most(tenant, now_s)
                self._held[tenant] += 1
                mine.set_result(self._free.pop(-1 if leaves_first else 0))
        if self._free and resting and (len(self._waiting) or len(self._waiting_batch)):
            self._come_back(min(resting.values()) - now_s)

    def _next(self, busy: Container[str]) -> tuple[str, asyncio.Future[int]] | None:
        return self._waiting.get(busy) or self._waiting_batch.get(busy)

    def _full(self, now_s: float) -> Container[str]:
        """Return the tenants that have all places but one, which is for others."""
        full = [tenant for tenant, count in self._held.items() if count >= self._places - 1 > 0]
        return {tenant for tenant in full if self._shares.has_others(tenant, now_s)}

    def _come_back(self, after_s: float) -> None:
        """Look again when the first tenant has rested."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._hand_out)
