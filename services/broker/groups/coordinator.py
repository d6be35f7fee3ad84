"""Manage the consumer groups of one broker: send responses, store the groups on disk, and run their timers."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from services.broker.groups.group import ConsumerGroup
from services.broker.groups.members import GroupResponse, StableGroup
from services.broker.protocol.responses import DeferredResponse
from services.broker.settings import BrokerSettings
from services.broker.storage.error_log import log_storage_error

logger = logging.getLogger("railbus.broker")

MAX_GROUPS = 10_000

_LATE_MS = 50  # a timer that is later than this shows that the process was paused or busy
_CATCH_UP_MS = 50


class GroupStore(Protocol):
    def save_groups(self, groups: Mapping[str, StableGroup]) -> None: ...


class GroupCoordinator:
    def __init__(self, settings: BrokerSettings, store: GroupStore | None = None) -> None:
        self._settings = settings
        self._store = store
        self._groups: dict[str, ConsumerGroup] = {}
        self._stable: dict[str, StableGroup] = {}
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def restore(self, groups: Mapping[str, StableGroup]) -> None:
        self._stable = dict(groups)
        for group_id, stable in groups.items():
            group = self._groups[group_id] = ConsumerGroup.restored(
                group_id, stable, monotonic_ms(), initial_delay_ms=self._settings.initial_join_delay_ms
            )
            self._set_timer(group)

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def all(self) -> list[ConsumerGroup]:
        return list(self._groups.values())

    def get_or_create(self, group_id: str) -> ConsumerGroup | None:
        """Return the group, creating it if necessary; None if there are already `MAX_GROUPS` groups."""
        group = self._groups.get(group_id)
        if group is None and len(self._groups) < MAX_GROUPS:
            group = self._groups[group_id] = ConsumerGroup(
                group_id, initial_delay_ms=self._settings.initial_join_delay_ms
            )
        return group

    def deliver(self, group: ConsumerGroup, responses: list[GroupResponse]) -> None:
        """Store the group if it has changed, send the responses to the clients, and schedule the next `tick`."""
        if group.stable is not self._stable.get(group.id):
            self._save(group)
        for answer in responses:
            ticket = answer.ticket
            assert isinstance(ticket, GroupTicket)  # noqa: S101 - holds by construction
            ticket.answer(answer)
        self._set_timer(group)

    def stop(self) -> None:
        for _due, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _save(self, group: ConsumerGroup) -> None:
        if group.stable is not None:
            self._stable[group.id] = group.stable
        else:
            self._stable.pop(group.id, None)
        if self._store is None:
            return
        try:
            self._store.save_groups(self._stable)
        except OSError as error:
            log_storage_error(f"group {group.id}", error)

    def _set_timer(self, group: ConsumerGroup) -> None:
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
                return  # it fires early and is then set again, which is cheaper than a timer per heartbeat
            armed[1].cancel()
        delay_s = max(0, due_ms - monotonic_ms()) / 1000
        timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer, group)
        self._timers[group.id] = (due_ms, timer)

    def _on_timer(self, group: ConsumerGroup) -> None:
        now_ms, (due_ms, _timer) = monotonic_ms(), self._timers[group.id]
        if now_ms - due_ms <= _LATE_MS:
            self._tick(group)
            return
        # uvloop calls timers before it reads sockets. So the heartbeats that came during a pause are read first.
        timer = asyncio.get_running_loop().call_later(_CATCH_UP_MS / 1000, self._tick, group)
        self._timers[group.id] = (now_ms + _CATCH_UP_MS, timer)

    def _tick(self, group: ConsumerGroup) -> None:
        self._timers.pop(group.id, None)
        self.deliver(group, group.tick(monotonic_ms()))


class GroupTicket:
    __slots__ = ("_write", "response")

    def __init__(self, response: DeferredResponse, write: Callable[[GroupResponse], bytes]) -> None:
        self.response = response
        self._write = write

    def answer(self, answer: GroupResponse) -> None:
        self.response.set_result(self._write(answer))


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
