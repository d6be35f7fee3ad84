"""The shell of the consumer groups: gives answers to who waits, and one timer per group for what time brings."""

import asyncio
import time
from collections.abc import Callable

from services.broker.group import Group
from services.broker.later import Later
from services.broker.members import Answer
from services.broker.settings import BrokerSettings

MAX_GROUPS = 10_000


class Groups:
    """All groups that have, or had, members."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def get(self, group_id: str) -> Group | None:
        """The group, if anybody ever joined it."""
        return self._groups.get(group_id)

    def all(self) -> list[Group]:
        """Every group."""
        return list(self._groups.values())

    def open(self, group_id: str) -> Group | None:
        """The group, made where needed; None when there are too many."""
        group = self._groups.get(group_id)
        if group is None and len(self._groups) < MAX_GROUPS:
            group = self._groups[group_id] = Group(group_id, initial_delay_ms=self._settings.initial_join_delay_ms)
        return group

    def settle(self, group: Group, answers: list[Answer]) -> None:
        """Give the answers to who waits for them, and look at the clock."""
        for answer in answers:
            ticket = answer.ticket
            assert isinstance(ticket, GroupTicket)  # noqa: S101 - holds by construction
            ticket.answer(answer)
        self._arm(group)

    def stop(self) -> None:
        """No more timers."""
        for _due, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _arm(self, group: Group) -> None:
        due_ms = group.next_deadline_ms()
        armed = self._timers.get(group.id)
        if due_ms is None:
            if armed is not None:
                armed[1].cancel()
                del self._timers[group.id]
            if group.idle:
                self._groups.pop(group.id, None)
            return
        if armed is not None:
            if armed[0] <= due_ms:
                return  # fires early, finds nothing to do and is set anew: cheaper than a timer per heartbeat
            armed[1].cancel()
        delay_s = max(0, due_ms - clock_ms()) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, self._tick, group)
        self._timers[group.id] = (due_ms, timer)

    def _tick(self, group: Group) -> None:
        self._timers.pop(group.id, None)
        self.settle(group, group.tick(clock_ms()))


class GroupTicket:
    """A JoinGroup or SyncGroup that waits: the connection's `Later`, and how its version writes the answer."""

    __slots__ = ("_write", "later")

    def __init__(self, later: Later, write: Callable[[Answer], bytes]) -> None:
        self.later = later
        self._write = write

    def answer(self, answer: Answer) -> None:
        """Write and give it."""
        self.later.give(self._write(answer))


def clock_ms() -> int:
    """Milliseconds of a clock that never jumps."""
    return time.monotonic_ns() // 1_000_000
