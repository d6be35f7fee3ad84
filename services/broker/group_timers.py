"""The shell of the consumer groups: gives answers to who waits, keeps what must be kept, and one timer per group."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from services.broker.group import Group
from services.broker.later import Later
from services.broker.members import Answer, StableGroup
from services.broker.settings import BrokerSettings

logger = logging.getLogger("railbus.broker")

MAX_GROUPS = 10_000


class Keeper(Protocol):
    """What keeps groups besides memory."""

    def save_groups(self, groups: Mapping[str, StableGroup]) -> None:
        """A group has become stable, or is empty. May raise `OSError`."""


class Groups:
    """All groups that have, or had, members."""

    def __init__(self, settings: BrokerSettings, keeper: Keeper | None = None) -> None:
        self._settings = settings
        self._keeper = keeper
        self._groups: dict[str, Group] = {}
        self._kept: dict[str, StableGroup] = {}
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def restore(self, kept: Mapping[str, StableGroup]) -> None:
        """Take back the groups that were stable before a restart."""
        self._kept = dict(kept)
        for group_id, stable in kept.items():
            group = self._groups[group_id] = Group.restored(
                group_id, stable, clock_ms(), initial_delay_ms=self._settings.initial_join_delay_ms
            )
            self._arm(group)

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
        """Keep what has changed, give the answers to who waits for them, and look at the clock."""
        if group.kept is not self._kept.get(group.id):
            self._keep(group)
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

    def _keep(self, group: Group) -> None:
        if group.kept is not None:
            self._kept[group.id] = group.kept
        else:
            self._kept.pop(group.id, None)
        if self._keeper is None:
            return
        try:
            self._keeper.save_groups(self._kept)
        except OSError as error:
            logger.error("group %s could not be kept in the data directory: %s", group.id, error.strerror)  # noqa: TRY400

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
