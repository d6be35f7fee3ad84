"""Write the changes of the ledger's Faust table to the changelog topic of this table, in batches."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from services.books import TableChange, newest_of_each
from services.ledger.pauses import PauseWatch
from services.runtime.metrics import LEDGER_READ

BATCH_S: Final = 0.1
"""Time for which changes are collected. A batch costs one write to a socket, which is the most expensive step."""

BATCH_EVENTS: Final = 1_000
"""Maximum number of events in a batch. While one batch is being written and the next is full, no event is accepted."""

Send = Callable[[int, TableChange], Awaitable[Awaitable[Any]]]
"""Function that gives a partition number and a change of the ledger's table to the producer.

It returns a future that is done when the broker has acknowledged the change."""


class _Taken(NamedTuple):
    event: Any
    partition: int
    changes: Sequence[TableChange]
    read: TableChange


class Changelog:
    """Collects the changes that events make to the ledger's table, and writes them to the changelog topic.

    An event is acknowledged to Faust after its changes were written.

    Args:
        send: Sends one change.
        pauses: Says whether this process was paused.
    """

    def __init__(self, send: Send, pauses: PauseWatch) -> None:
        self._send = send
        self._pauses = pauses
        self._taken: list[_Taken] = []
        self._filled = asyncio.Event()
        self._full = asyncio.Event()
        self._emptied = asyncio.Condition()
        self._writing = False

    async def add(self, event: Any, partition: int, changes: Sequence[TableChange], read: TableChange) -> None:
        """Queue the changes that an event makes to the ledger's table. While the queue is full, wait.

        ``read`` is one more change: it stores the offset up to which the partition was read.
        """
        if len(self._taken) >= BATCH_EVENTS:
            async with self._emptied:
                await self._emptied.wait_for(lambda: len(self._taken) < BATCH_EVENTS)
        self._taken.append(_Taken(event, partition, changes, read))
        self._filled.set()
        if len(self._taken) >= BATCH_EVENTS:
            self._full.set()

    async def written(self) -> None:
        """Wait until the broker has acknowledged all queued changes."""
        self._full.set()  # do not wait for BATCH_S
        async with self._emptied:
            await self._emptied.wait_for(lambda: not self._taken and not self._writing)

    async def run(self) -> None:
        """Write queued changes until cancelled.

        Raises:
            Exception: The broker did not accept a change.
            UnavailableError: This process was paused for longer than the session timeout.
        """
        while True:
            await self._filled.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full.wait(), BATCH_S)
            batch, self._taken = self._taken, []
            self._writing = True
            self._filled.clear()
            self._full.clear()
            await self._tell()
            await self._write(batch)
            self._writing = False
            await self._tell()

    async def _write(self, batch: Sequence[_Taken]) -> None:
        # A batch has only the newest change of each key, so account and receipt of a request mostly become one record.
        # The offset up to which a partition was read is written after the partition's changes, so that the state can be
        # restored from any prefix of a batch.
        changes: dict[int, list[TableChange]] = {}
        read: dict[int, dict[bytes, TableChange]] = {}
        for taken in batch:
            changes.setdefault(taken.partition, []).extend(taken.changes)
            read.setdefault(taken.partition, {})[taken.read.key] = taken.read
        pending: list[Awaitable[Any]] = []
        for partition, each in changes.items():
            for change in (*newest_of_each(each), *read[partition].values()):
                # After a pause, the next owner of the partitions may have written newer values of the same keys. The
                # events are not acknowledged then, so they are read again.
                self._pauses.check()
                pending.append(await self._send(partition, change))
        for acknowledged in pending:
            await acknowledged
        for taken in batch:
            taken.event.ack()
        LEDGER_READ.inc(len(batch))

    async def _tell(self) -> None:
        async with self._emptied:
            self._emptied.notify_all()
