"""A member of a consumer group: workers share partitions, and the group remembers how far they came."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

from aiokafka import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from schemas.topics import Topic
from services.bus.contact import backoff_s, contact_with, wait_for_broker
from services.bus.intake import Intake
from services.bus.kafka import group_options, make_consumer, named, put_away_consumer
from services.bus.loop import consume
from services.bus.offsets import OffsetBook
from services.bus.records import Handler, Received, TopicPartitions, Unread, Wants
from services.bus.replay import Replay
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.runtime.clock import now_ms
from services.runtime.logging import logger
from services.runtime.metrics import COMMITS

_log = logger("bus")

CommitMode = Literal["on_accept", "manual", "never"]
OnPartitions = Callable[[TopicPartitions], Awaitable[None] | None]

LAST_COMMIT_S: Final = 5.0
"""Longest time the commit may take that precedes giving partitions away."""


class GroupReader:
    """Reads the partitions the group gives it.

    Args:
        settings: Where and how.
        topics: What to read. Members get the same partition numbers of all topics with equally many partitions.
        group: The consumer group.
        handler: See ``services.bus.records.Handler``.
        wants: Records it says no to are passed over without decoding.
        room: Backpressure; see ``Room``.
        start: Where to begin when the group has no committed offset.
        on_assigned: Told all partitions held from now on, before any of their records; may be a coroutine function.
        on_revoked: Told what is taken away, after the last record of it; may be a coroutine function.
        commit: ``on_accept`` commits when the handler has returned; ``manual`` when ``done`` was called for a record
            and all before it; ``never`` leaves the group's offsets alone.
        rewind_ms: A partition that was not held just before begins this far back in time, whatever is committed; one
            that was goes on where it was.
        on_caught_up: With ``rewind_ms``: told which partitions were read to where they ended at their assignment.
        instance_id: Static membership: a restart within the session timeout keeps its partitions. Two processes with
            one id would take the partitions from each other for ever.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each thing a worker decides
        self,
        settings: BusSettings,
        *,
        topics: Sequence[Topic],
        group: str,
        handler: Handler,
        wants: Wants | None = None,
        room: Room | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        commit: CommitMode = "on_accept",
        rewind_ms: int | None = None,
        on_caught_up: Callable[[TopicPartitions], None] | None = None,
        instance_id: str | None = None,
    ) -> None:
        self._settings = settings
        self._topics = [topic.name for topic in topics]
        self._group = group
        self._handler = handler
        self._room = room
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._commit = commit
        self._rewind_ms = rewind_ms
        self._on_caught_up = on_caught_up
        self._replay = Replay()
        self._options = group_options(settings, group, start, instance_id)
        self._intake = Intake(wants)
        self._book = OffsetBook()
        self._commit_due = asyncio.Event()
        self._calm = asyncio.Event()
        self._callback_error: BaseException | None = None
        self._consumer: Any = None

    async def run(self) -> None:
        """Reads until cancelled; while the broker is away it waits, says so once, and goes on.

        Raises:
            UserError: The broker refuses the credentials.
        """
        attempt = 0
        while True:
            await wait_for_broker(self._settings)
            try:
                await self._session()
            except KafkaError as error:
                contact_with(self._settings).lost(error)
                _log.warning("group %s: reading begins again after %r", self._group, error)
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1

    def done(self, topic: str, partition: int, offset: int) -> None:
        """Says that the work on a record is over (commit mode ``manual``)."""
        self._book.done((topic, partition), offset)
        self._commit_due.set()

    async def _session(self) -> None:
        """One consumer's life."""
        self._consumer = make_consumer(self._settings, f"{self._group}-reader", **self._options)
        self._consumer.subscribe(self._topics, listener=_Listener(self))
        self._callback_error = None
        committer: asyncio.Task[None] | None = None
        try:
            await self._consumer.start()
            if self._commit != "never":
                committer = asyncio.create_task(self._commit_loop(), name=f"{self._group}-commits")
            await consume(
                self._consumer,
                intake=self._intake,
                handler=self._handler,
                room=self._room,
                delivered=self._delivered,
                settled=self._settled,
            )
        finally:
            if committer is not None:
                committer.cancel()
                await asyncio.gather(committer, return_exceptions=True)
            await self._commit_last()
            await put_away_consumer(self._consumer)
            self._book.forget()

    def _delivered(self, progress: Mapping[tuple[str, int], tuple[int, Sequence[Received | Unread]]]) -> None:
        for partition, (next_offset, kept) in progress.items():
            self._book.read(partition, next_offset, (r.offset for r in kept) if self._commit == "manual" else ())
        self._commit_due.set()
        if self._rewind_ms is not None:
            self._tell_caught_up(self._replay.read({partition: at for partition, (at, _) in progress.items()}))

    async def _settled(self) -> bool:
        """A fetch that came while partitions were being assigned waits for that; after a rewind it comes again."""
        if self._callback_error is not None:
            raise self._callback_error
        if self._calm.is_set():
            return True
        await self._calm.wait()
        if self._callback_error is not None:
            raise self._callback_error
        return self._rewind_ms is None

    async def revoked(self, partitions: TopicPartitions) -> None:
        """Called by aiokafka before a rebalance."""
        self._calm.clear()
        await self._commit_last()
        self._book.forget()
        if partitions and self._on_revoked is not None:
            await self._tell(self._on_revoked, partitions)

    async def assigned(self, partitions: TopicPartitions) -> None:
        """Called by aiokafka after a rebalance."""
        if self._on_assigned is not None:
            await self._tell(self._on_assigned, partitions)
        if self._rewind_ms is not None:
            await self._tell(self._go_back, partitions)
        self._calm.set()

    async def _tell(self, callback: OnPartitions, partitions: TopicPartitions) -> None:
        """Aiokafka logs and forgets what a listener raises; here it ends the reader."""
        try:
            answer = callback(partitions)
            if answer is not None:
                await answer
        except Exception as error:  # noqa: BLE001 - raised again by the loop
            self._callback_error = error

    async def _go_back(self, partitions: TopicPartitions) -> None:
        starts = self._replay.hold(partitions)
        if not partitions:
            return
        tps = named(partitions)
        time_ms = now_ms() - (self._rewind_ms or 0)
        new = [tp for tp in tps if (tp.topic, tp.partition) not in starts]
        found = await self._consumer.offsets_for_times(dict.fromkeys(new, time_ms)) if new else {}
        ends = await self._consumer.end_offsets(tps)
        for tp in new:
            starts[tp.topic, tp.partition] = ends[tp] if found[tp] is None else found[tp].offset
        for tp in tps:
            self._consumer.seek(tp, starts[tp.topic, tp.partition])
        self._tell_caught_up(self._replay.place(starts, {(tp.topic, tp.partition): ends[tp] for tp in tps}))

    def _tell_caught_up(self, partitions: TopicPartitions) -> None:
        if partitions and self._on_caught_up is not None:
            self._on_caught_up(partitions)

    async def _commit_loop(self) -> None:
        while True:
            await self._commit_due.wait()
            self._commit_due.clear()
            await self._commit_now()

    async def _commit_now(self) -> None:
        positions = self._book.due()
        if not positions:
            return
        offsets = {tp: positions[tp] for tp in named(positions)}
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            return  # a rebalance came first; whoever has the partitions now reads from the last commit
        except KafkaError as error:
            _log.warning("group %s: commit failed: %r", self._group, error)
            return
        self._book.committed(positions)
        COMMITS.labels(self._group).inc()

    async def _commit_last(self) -> None:
        if self._commit != "never":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_S):
                    await self._commit_now()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Aiokafka's callbacks, with partitions as plain pairs."""

    def __init__(self, reader: GroupReader) -> None:
        self._reader = reader

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await self._reader.revoked(frozenset((tp.topic, tp.partition) for tp in revoked))

    async def on_partitions_assigned(self, assigned: Any) -> None:
        await self._reader.assigned(frozenset((tp.topic, tp.partition) for tp in assigned))
