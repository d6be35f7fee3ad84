"""Let tenants take turns, so that one tenant's long texts do not delay the texts of other tenants.

In a turn, a rail reads a small piece of one text. Interactive requests come before batch requests.
"""

import asyncio
import time
from bisect import insort
from collections.abc import Collection, Container, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Final

from services.processor.fair_queue import FairQueue

SLICE_WORK: Final = 1_024
"""Approximate work of one turn, in characters. For prose, this takes a fifth of a millisecond."""

PIECE_CHARS: Final = 16
"""Number of characters after which the cost of reading is checked, because some text costs a hundred times as much as
prose."""

DEAR_PIECE_CHARS: Final = 4
"""Number of characters after which the cost is checked in text that is expensive to read."""

DEAR_WORK: Final = 32
"""Minimum cost at which text counts as expensive to read, in look-ups per character."""

CREDIT_S: Final = 0.5
"""Seconds by which a tenant may be ahead of its share of this process's time. Reading the longest prompt takes half a
second."""

RECENT_S: Final = 10.0
"""Seconds after its last turn for which a tenant counts as active, so that other tenants must leave time for it."""

PREFERENCE_S: Final = 0.1
"""Seconds for which a request has preference over tenants beyond their share, from the start of its evaluation.

It is bounded, because a request may wait for another server.
"""

LOOK_AGAIN_S: Final = 0.002
"""Seconds after which a tenant that gave way asks for its turn again."""


class ActiveRequests:
    """The requests whose evaluation began less than ``PREFERENCE_S`` ago and has not ended."""

    def __init__(self) -> None:
        self._tenants: dict[object, str] = {}  # one entry for each request

    @contextmanager
    def request(self, tenant: str) -> Iterator[None]:
        """Count a request as active during the ``with`` block, but for at most ``PREFERENCE_S``."""
        request = object()
        self._tenants[request] = tenant
        timer = asyncio.get_running_loop().call_later(PREFERENCE_S, self._tenants.pop, request, None)
        try:
            yield
        finally:
            timer.cancel()
            self._tenants.pop(request, None)

    def has_other(self, tenants: Container[str]) -> bool:
        return any(tenant not in tenants for tenant in self._tenants.values())


class TenantShares:
    """Tracks how much of this process's time each tenant has used.

    All tenants have equal shares of the time. A tenant that has used much more than its share must rest: it gets no
    turns for a while.
    """

    # Half of the time is divided equally among the tenants that use this process; this is a share. The other half stays
    # free, so that a tenant within its share need not wait. A tenant rests until it is only ``credit_s`` seconds ahead.
    # It need not rest if no other tenant had a turn in the last ``RECENT_S`` seconds.

    def __init__(self, credit_s: float = CREDIT_S) -> None:
        self._credit_s = credit_s
        self._even_at_s: dict[str, float] = {}  # the time at which the tenant is back at its share
        self._recent_s: dict[str, float] = {}  # when each tenant's last turn ended

    def had(self, tenant: str, took_s: float, now_s: float) -> None:
        """Charge the tenant for a turn that took ``took_s`` seconds and ended at ``now_s``."""
        begun_s = now_s - took_s
        even_at_s = min(max(self._even_at_s.get(tenant, begun_s), begun_s), begun_s + self._credit_s)
        self._forget(now_s)
        self._recent_s[tenant] = now_s
        sharing = len(self._even_at_s) + (tenant not in self._even_at_s)
        self._even_at_s[tenant] = even_at_s + 2 * sharing * took_s

    def resting(self, now_s: float) -> dict[str, float]:
        """Return the tenants that get no turns now, each with the time at which its rest ends."""
        self._forget(now_s)
        if len(self._recent_s) < 2:
            return {}
        until_s = {tenant: even_at_s - self._credit_s for tenant, even_at_s in self._even_at_s.items()}
        return {tenant: rested_s for tenant, rested_s in until_s.items() if rested_s > now_s}

    def ahead(self, now_s: float) -> Collection[str]:
        self._forget(now_s)
        return self._even_at_s.keys()

    def had_most(self, tenant: str, now_s: float) -> bool:
        self._forget(now_s)
        others = [at_s for name, at_s in self._even_at_s.items() if name != tenant]
        return self._even_at_s.get(tenant, now_s) > max(others, default=now_s)

    def has_others(self, tenant: str, now_s: float) -> bool:
        self._forget(now_s)
        return bool(self._recent_s.keys() - {tenant})

    def _forget(self, now_s: float) -> None:
        for tenant in [tenant for tenant, even_at_s in self._even_at_s.items() if even_at_s <= now_s]:
            del self._even_at_s[tenant]
        for tenant in [tenant for tenant, at_s in self._recent_s.items() if at_s <= now_s - RECENT_S]:
            del self._recent_s[tenant]


class Turns:
    """Hands out turns to tenants, so that a tenant that has used much time does not delay the others.

    Args:
        places: Maximum number of turns at the same time. Each turn has a place, numbered from 0.
        active: The requests that this process evaluates now.
        credit_s: Seconds by which a tenant may exceed its share of the time before it must wait. This limit applies
            only if ``places`` is 1 and other tenants had turns recently.
    """

    # With one place, a turn uses time of this process; with several, the work is done in other processes. The caller
    # must limit how many requests wait for a turn.

    # With one place, a tenant that is too far ahead of its share rests. With several places, if other tenants had turns
    # in the last ``RECENT_S`` seconds, a tenant may not have all places, and the tenant that has used most time gets
    # place 0 only if no other place is free. In both cases, a tenant that is ahead of its share gets no turn if
    # ``active`` has a request of a tenant that is not.

    def __init__(self, places: int = 1, *, active: ActiveRequests | None = None, credit_s: float = CREDIT_S) -> None:
        self._places = places
        self.active = active or ActiveRequests()
        self._free = list(range(places))
        self._held: dict[str, int] = {}
        self._shares = TenantShares(credit_s)
        self._waiting: FairQueue[asyncio.Future[int]] = FairQueue()
        self._waiting_batch: FairQueue[asyncio.Future[int]] = FairQueue()
        self._timer: asyncio.TimerHandle | None = None

    def turn(self, tenant: str, *, batch: bool = False) -> "_Turn":
        """Return a context manager for one turn: ``async with turns.turn(tenant) as place``.

        On entry, it waits for the tenant's turn. ``place`` is a number from 0 to ``places - 1`` that no other running
        turn has.
        """
        return _Turn(self, tenant, batch=batch)

    def ask(self, tenant: str, *, batch: bool) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[int] = loop.create_future()
        (self._waiting_batch if batch else self._waiting).put(tenant, place)
        loop.call_soon(self._hand_out)
        return place

    def charge(self, tenant: str, begun_s: float) -> None:
        now_s = time.perf_counter()
        self._shares.had(tenant, now_s - begun_s, now_s)

    def give_back(self, tenant: str, place: int) -> None:
        insort(self._free, place)
        if self._held[tenant] == 1:
            del self._held[tenant]
        else:
            self._held[tenant] -= 1
        asyncio.get_running_loop().call_soon(self._hand_out)

    def _hand_out(self) -> None:
        if not self._free:
            return
        now_s, alone = time.perf_counter(), self._places == 1
        ahead = self._shares.ahead(now_s)
        giving_way = set(ahead) if ahead and self.active.has_other(ahead) else set()
        # A request passes through about thirty callbacks of the event loop, and would wait for a turn at each of them.
        resting = self._shares.resting(now_s) if alone else {}
        while self._free:
            busy = giving_way.union(resting if alone else self._full(now_s))
            turn = self._waiting.get(busy) or self._waiting_batch.get(busy)
            if turn is None:
                break
            tenant, mine = turn
            if not mine.done():  # done means that the waiting task was cancelled
                self._held[tenant] = self._held.get(tenant, 0) + 1
                mine.set_result(self._free.pop(-1 if not alone and self._leaves_first(tenant, now_s) else 0))
        if self._free and (resting or giving_way) and (len(self._waiting) or len(self._waiting_batch)):
            self._come_back(LOOK_AGAIN_S if giving_way else min(resting.values()) - now_s)

    def _leaves_first(self, tenant: str, now_s: float) -> bool:
        return self._shares.has_others(tenant, now_s) and self._shares.had_most(tenant, now_s)

    def _full(self, now_s: float) -> set[str]:
        # Tenants that have all places but one get no further place while other tenants are active.
        full = [tenant for tenant, count in self._held.items() if count >= self._places - 1 > 0]
        return {tenant for tenant in full if self._shares.has_others(tenant, now_s)}

    def _come_back(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(after_s, self._hand_out)


# A class, because each slice of text needs a turn, and a generator costs much more.
class _Turn(AbstractAsyncContextManager[int]):
    __slots__ = ("_batch", "_begun_s", "_place", "_tenant", "_turns")

    def __init__(self, turns: Turns, tenant: str, *, batch: bool) -> None:
        self._turns = turns
        self._tenant = tenant
        self._batch = batch
        self._place = 0
        self._begun_s = 0.0

    async def __aenter__(self) -> int:
        mine = self._turns.ask(self._tenant, batch=self._batch)
        try:
            self._place = await mine
        except asyncio.CancelledError:
            if not mine.cancelled():  # the turn was given just before the cancellation
                self._turns.give_back(self._tenant, mine.result())
            raise
        self._begun_s = time.perf_counter()
        return self._place

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._turns.charge(self._tenant, self._begun_s)
        self._turns.give_back(self._tenant, self._place)
