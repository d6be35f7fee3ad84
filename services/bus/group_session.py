"""One membership's life, from joining to leaving: what is read, from where, and what is committed."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from aiokafka.errors import KafkaError

from services.bus.cluster import Cluster
from services.bus.fetch_wire import Partition
from services.bus.fetcher import Events, Fetcher
from services.bus.intake import Intake
from services.bus.member import Member, request_timeout_ms
from services.bus.offsets import OffsetBook
from services.bus.records import Handler, TopicPartitions
from services.bus.replay import Replay
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.runtime.clock import now_ms
from services.runtime.logging import logger
from services.runtime.metrics import COMMITS

_log = logger("bus")

CommitMode = Literal["on_accept", "manual", "never"]
OnPartitions = Callable[[TopicPartitions], Awaitable[None] | None]

COMMIT_EVERY_S: Final = 0.1
"""A commit goes at once, the next not before this time has passed: what is committed late is done twice at worst."""

LAST_COMMIT_S: Final = 3.0
"""Longest time the commit may take that precedes giving partitions away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a group reader was asked to do; see ``GroupReader``."""

    topics: tuple[str, ...]
    group: str
    handler: Handler | None
    room: Room | None
    start: Literal["earliest", "latest"]
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    commit: CommitMode
    rewind_ms: int | None
    on_caught_up: Callable[[TopicPartitions], None] | None
    instance_id: str | None


class GroupSession:
    """Joins, reads, commits, leaves.

    Args:
        settings: Where and how.
        plan: What for.
        intake: Filters and decodes.
        book: The reader's offset bookkeeping; emptied whenever partitions go.
        replay: Where the reader stood; outlives the session.
    """

    def __init__(self, settings: BusSettings, plan: Plan, *, intake: Intake, book: OffsetBook, replay: Replay) -> None:
        self._settings = settings
        self._plan = plan
        self._book = book
        self._replay = replay
        self._cluster = Cluster(settings, f"{plan.group}-reader", timeout_ms=request_timeout_ms(settings))
        self._fetcher = Fetcher(self._cluster, intake=intake, hand_over=self._hand_over, room=plan.room)
        self._member: Member | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._placing: asyncio.Task[None] | None = None
        self._commit_due = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            KafkaError: The membership cannot go on; another session may do better.
            UserError: The broker refuses the credentials, or does not let us read.
        """
        await self._cluster.open()
        try:
            await self._cluster.know(self._plan.topics)
            async with asyncio.TaskGroup() as self._tasks:
                self._member = self._join()
                self._tasks.create_task(self._member.watch(), name=f"{self._plan.group}-member")
                self._tasks.create_task(self._fetcher.run(), name=f"{self._plan.group}-reader")
                if self._plan.commit != "never":
                    self._tasks.create_task(self._commit_loop(), name=f"{self._plan.group}-commits")
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._tasks = None
            if self._member is not None:
                await self._commit_last()
                await self._member.leave()
            self._book.forget()
            await self._cluster.close()

    def done(self, partition: Partition, offset: int) -> None:
        """Says that the work on a record is over."""
        self._book.done(partition, offset)
        self._commit_due.set()

    def _join(self) -> Member:
        plan = self._plan
        return Member(
            self._cluster,
            self._settings,
            group=plan.group,
            topics=plan.topics,
            instance_id=plan.instance_id,
            revoked=self._revoked,
            assigned=self._assigned,
        )

    def _hand_over(self, events: Events, progress: Mapping[Partition, int]) -> None:
        if self._plan.commit == "manual":  # before the handler, which may say at once that it is done with a record
            kept: dict[Partition, list[int]] = {partition: [] for partition in progress}
            for event in events:
                kept[event.topic, event.partition].append(event.offset)
            for partition, next_offset in progress.items():
                self._book.read(partition, next_offset, kept[partition])
        if events and self._plan.handler is not None:
            self._plan.handler(events)
        if self._plan.commit == "on_accept":
            for partition, next_offset in progress.items():
                self._book.read(partition, next_offset)
        self._commit_due.set()
        if self._plan.rewind_ms is not None:
            self._tell_caught_up(self._replay.read(progress))

    async def _revoked(self, partitions: TopicPartitions) -> None:
        """aiokafka logs and forgets what this raises, so it raises nothing."""  # noqa: D403 - its name
        self._fetcher.drop()
        if self._placing is not None:
            self._placing.cancel()
            await asyncio.wait({self._placing})
        await self._commit_last()
        self._book.forget()
        if not partitions or self._plan.on_revoked is None or self._tasks is None:
            return
        # As a task of the group what it raises ends the reader; the rebalance waits for it all the same.
        await asyncio.wait({self._tasks.create_task(_tell(self._plan.on_revoked, partitions))})

    def _assigned(self, partitions: TopicPartitions) -> None:
        if self._tasks is not None:
            self._placing = self._tasks.create_task(self._place(partitions), name=f"{self._plan.group}-assignment")

    async def _place(self, partitions: TopicPartitions) -> None:
        if self._plan.on_assigned is not None:
            await _tell(self._plan.on_assigned, partitions)
        if self._plan.handler is None:
            return
        if self._plan.rewind_ms is not None:
            await self._go_back(partitions, now_ms() - self._plan.rewind_ms)
        elif partitions:
            self._fetcher.place(await self._starts(partitions))

    async def _starts(self, partitions: TopicPartitions) -> dict[Partition, int]:
        committed = {} if self._member is None else await self._member.committed(partitions)
        new = partitions - committed.keys()
        ask = self._cluster.begins if self._plan.start == "earliest" else self._cluster.ends
        return committed | (await ask(new) if new else {})

    async def _go_back(self, partitions: TopicPartitions, time_ms: int) -> None:
        starts = self._replay.hold(partitions)
        if not partitions:
            return
        new = partitions - starts.keys()
        starts |= await self._cluster.at_time(new, time_ms) if new else {}
        ends = await self._cluster.ends(partitions)
        self._fetcher.place(starts)
        self._tell_caught_up(self._replay.place(starts, ends))

    def _tell_caught_up(self, partitions: TopicPartitions) -> None:
        if partitions and self._plan.on_caught_up is not None:
            self._plan.on_caught_up(partitions)

    async def _commit_loop(self) -> None:
        while True:
            await self._commit_due.wait()
            self._commit_due.clear()
            await self._commit_now()
            await asyncio.sleep(COMMIT_EVERY_S)

    async def _commit_now(self) -> None:
        positions = self._book.due()
        if not positions or self._member is None:
            return
        try:
            if not await self._member.commit(positions):
                return  # a rebalance came first; whoever has the partitions now reads from the last commit
        except KafkaError as error:
            _log.warning("group %s: commit failed: %r", self._plan.group, error)
            return
        self._book.committed(positions)
        COMMITS.labels(self._plan.group).inc()

    async def _commit_last(self) -> None:
        if self._plan.commit != "never":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_S):
                    await self._commit_now()


async def _tell(callback: OnPartitions, partitions: TopicPartitions) -> None:
    answer = callback(partitions)
    if answer is not None:
        await answer
