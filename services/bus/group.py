"""A member of a consumer group: workers share partitions, and the group remembers how far they came.

aiokafka has no cooperative assignment: at every rebalance a member formally gives back all it has, and is dealt its
partitions anew. So nothing is done when they are given back. Reading goes on while the group is joined again, and only
the difference counts: what is *kept* goes on where it was and notices nothing, what is *gained* is read from its start,
what is *lost* is dropped.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, NamedTuple

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from schemas.topics import Topic
from services.bus.cluster import Cluster
from services.bus.contact import backoff_s
from services.bus.fetcher import Events, Fetcher, newest_ms
from services.bus.holding import Holding, OnAssigned
from services.bus.intake import Intake
from services.bus.member import Member, request_timeout_ms
from services.bus.offsets import OffsetBook, Partition
from services.bus.records import Handler, TopicPartitions, Wants
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.runtime.clock import now_ms
from services.runtime.errors import UserError, first_of
from services.runtime.logging import logger
from services.runtime.metrics import COMMITS, REBALANCES
from services.runtime.tasks import start_in

_log = logger("bus")

OnNewest = Callable[[Mapping[Partition, int]], None]

CommitMode = Literal["on_accept", "manual", "never"]

HEALTHY_S: Final = 30.0
"""A session that lasted so long was a good one: after it a failure is said again, and waits briefly again."""

COMMIT_EVERY_S: Final = 0.1
"""A commit goes at once, the next not before this time has passed: what is committed late is done twice at worst."""

LAST_COMMIT_S: Final = 3.0
"""Longest time the commit may take that precedes giving partitions away."""


@dataclass(eq=False)
class GroupReader:
    """Reads the partitions the group gives it; where the group has committed nothing, from the oldest record on.

    Args:
        settings: Where and how.
        topics: What to read. Members get the same partition numbers of all topics with equally many partitions.
        group: The consumer group.
        handler: See ``services.bus.records.Handler``. With None nothing is read: the group only deals partitions out.
        wants: Records it says no to are passed over without decoding.
        room: Backpressure; see ``Room``.
        newer: Records written for a newer reader come as ``Unread`` too; else they are only counted.
        on_assigned: Told of every assignment, after the last record of what is lost and before the first of what is
            gained. An error ends reading.
        commit: ``on_accept`` commits when the handler has returned; ``manual`` when ``done`` was called for a record
            and all before it; ``never`` leaves the group's offsets alone.
        rewind_ms: What is gained begins this far back in time, whatever is committed: for readers that fold the log.
        on_newest: With ``rewind_ms``: told when the last record of what is gained was appended, in milliseconds by the
            broker's clock, before the first record of it.
        instance_id: Static membership: a restart within the session timeout keeps its partitions. Two processes with
            one id would take the partitions from each other for ever.
    """

    settings: BusSettings
    _: KW_ONLY
    topics: Sequence[Topic]
    group: str
    handler: Handler | None
    wants: Wants | None = None
    newer: bool = False
    room: Room | None = None
    on_assigned: OnAssigned | None = None
    commit: CommitMode = "on_accept"
    rewind_ms: int | None = None
    on_newest: OnNewest | None = None
    instance_id: str | None = None

    def __post_init__(self) -> None:
        self._intake = Intake(self.wants, newer=self.newer)
        self._book = OffsetBook()
        self._holding = Holding[asyncio.Future[bool]]()
        self._goals: dict[asyncio.Future[bool], _Goal] = {}
        self._session: _Session | None = None

    @property
    def joined(self) -> bool:
        """Whether the group has dealt us our partitions, be they none, and the membership stands."""
        return self._session is not None and self._session.dealt

    async def run(self) -> None:
        """Reads until cancelled; while the broker is away it waits, says so once, and goes on.

        Raises:
            UserError: The broker refuses the credentials, or does not let us read.
        """
        attempt = 0
        while True:
            began = time.monotonic()
            self._session = _Session(self, self._intake, self._book, self._holding)
            for reached, goal in self._goals.items():
                self._session.aim(reached, goal)
            try:
                await self._session.run()
            except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
                raise UserError(f"group {self.group}: the broker does not let this user read: {error}") from None
            except KafkaError as error:
                attempt = 1 if time.monotonic() - began > HEALTHY_S else attempt + 1
                if attempt == 1:
                    _log.warning("group %s: joining again after %r", self.group, error)
                await asyncio.sleep(backoff_s(attempt))
            finally:
                self._session = None

    async def read_to_end(self, partitions: TopicPartitions) -> bool:
        """Return true when everything that stands on these partitions now was handed over, false when one is lost.

        Waits while the broker is away.
        """
        return await self._reach(_Goal(partitions, wait=True))

    def leader(self, partition: Partition) -> int | None:
        """The broker that leads a partition; None while it is not known."""
        return None if self._session is None else self._session.leader(partition)

    async def lag(self) -> int:
        """How many records of what is held are unread. Waits while the broker is away."""
        await self._reach(_Goal(self._holding.held, wait=False))
        return self._holding.lag

    def done(self, topic: str, partition: int, offset: int) -> None:
        """Says that the work on a record is over (commit mode ``manual``); a stale one is ignored."""
        self._book.done((topic, partition), offset)
        if self._session is not None:
            self._session.commit_soon()

    async def _reach(self, goal: "_Goal") -> bool:
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._goals[reached] = goal
        try:
            if self._session is not None:
                self._session.aim(reached, goal)
            return await reached
        finally:
            del self._goals[reached]
            self._holding.forget_goal(reached)


class _Goal(NamedTuple):
    """Find out where these partitions end; with ``wait``, be told when they were read so far."""

    partitions: TopicPartitions
    wait: bool


class _Session:
    """One membership's life, from joining to leaving; what outlives it (book, holding) is the reader's."""

    def __init__(
        self, reader: GroupReader, intake: Intake, book: OffsetBook, holding: Holding[asyncio.Future[bool]]
    ) -> None:
        self.dealt = False
        self._plan = reader
        self._book = book
        self._holding = holding
        settings = reader.settings
        self._cluster = Cluster(settings, f"{reader.group}-reader", timeout_ms=request_timeout_ms(settings))
        self._fetcher = Fetcher(
            self._cluster, intake=intake, hand_over=self._hand_over, room=reader.room, on_moved=self._on_moved
        )
        self._topics = [topic.name for topic in reader.topics]
        self._member: Member | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._commit_due = asyncio.Event()
        self._unplaced = asyncio.Event()
        self._aims: list[tuple[asyncio.Future[bool], _Goal]] = []

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            KafkaError: The membership cannot go on; another session may do better.
            UserError: The broker refuses the credentials, or does not let us read.
        """
        await self._cluster.open()
        try:
            await self._cluster.know(self._topics)
            async with asyncio.TaskGroup() as self._tasks:
                self._member = self._join()
                self._tasks.create_task(self._member.watch(), name=f"{self._plan.group}-member")
                self._tasks.create_task(self._fetcher.run(), name=f"{self._plan.group}-reader")
                self._tasks.create_task(self._place(), name=f"{self._plan.group}-places")
                if self._plan.commit != "never":
                    self._tasks.create_task(self._commit_loop(), name=f"{self._plan.group}-commits")
                for reached, goal in self._aims:
                    self._tasks.create_task(self._ask_ends(reached, goal))
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        finally:
            self._tasks = None
            self.dealt = False
            if self._member is not None:
                await self._commit_last()
                await self._member.leave()
            await self._cluster.close()

    def aim(self, reached: asyncio.Future[bool], goal: _Goal) -> None:
        """Ask where the partitions end, from now on or once connected; tell when the goal is reached."""
        if self._tasks is None:
            self._aims.append((reached, goal))
        else:
            start_in(self._tasks, self._ask_ends(reached, goal))

    def leader(self, partition: Partition) -> int | None:
        """See ``GroupReader.leader``."""
        return self._cluster.leader(partition)

    def commit_soon(self) -> None:
        """There may be something to commit."""
        self._commit_due.set()

    def _join(self) -> Member:
        plan = self._plan
        return Member(
            self._cluster,
            plan.settings,
            group=plan.group,
            topics=self._topics,
            instance_id=plan.instance_id,
            held=lambda: self._holding.held,
            revoked=self._commit_last,
            assigned=self._assigned,
        )

    def _hand_over(self, events: Events, progress: Mapping[Partition, int]) -> None:
        plan = self._plan
        if plan.commit == "manual":  # before the handler, which may say at once that it is done with a record
            kept: dict[Partition, list[int]] = {partition: [] for partition in progress}
            for event in events:
                kept[event.topic, event.partition].append(event.offset)
            for partition, next_offset in progress.items():
                self._book.read(partition, next_offset, kept[partition])
        if events and plan.handler is not None:
            plan.handler(events)
        if plan.commit == "on_accept":
            for partition, next_offset in progress.items():
                self._book.read(partition, next_offset)
        if plan.commit != "never":
            self._commit_due.set()
        for reached in self._holding.read(progress):
            _settle(reached, all_read=True)

    def _assigned(self, partitions: TopicPartitions) -> None:
        """Told by aiokafka, which would log and forget what this raises."""
        start_in(self._tasks, self._take_over(partitions), f"{self._plan.group}-assignment")

    async def _take_over(self, partitions: TopicPartitions) -> None:
        # A work queue goes on from what was committed meanwhile: another member had these partitions. A fold is as good
        # as the records it has read, whoever held the partition in between.
        stale = self._plan.rewind_ms is None and self._member is not None and self._member.was_out
        self._assign(partitions, partitions if stale else frozenset())
        self.dealt = True
        REBALANCES.labels(self._plan.group).inc()

    def _on_moved(self, partition: Partition, _: int, begin: int) -> None:
        """A fold of records that are not on the log any more is worth nothing: its number begins anew."""
        if self._plan.rewind_ms is None:
            self._holding.positions[partition] = begin
        else:
            held = self._holding.held
            self._assign(held, frozenset(each for each in held if each[1] == partition[1]))

    def _assign(self, partitions: TopicPartitions, anew: TopicPartitions) -> None:
        assignment, missed = self._holding.assign(partitions, anew)
        for reached in missed:
            _settle(reached, all_read=False)
        self._fetcher.drop(tuple(assignment.lost))
        self._book.forget(assignment.lost)
        if self._plan.on_assigned is not None:
            self._plan.on_assigned(assignment)
        self._unplaced.set()

    async def _place(self) -> None:
        """Begin to read what is held and not read yet: what is gained, and in a new session also what is kept."""
        while True:
            await self._unplaced.wait()
            self._unplaced.clear()
            if self._plan.handler is None:
                continue
            if new := self._holding.unplaced:
                starts = await self._starts(new)
                if self._plan.on_newest is not None:
                    self._plan.on_newest(await newest_ms(self._cluster, await self._cluster.ends(new)))
                for reached in self._holding.place(starts):
                    _settle(reached, all_read=True)
            known = self._holding.positions
            self._fetcher.place({p: at for p, at in known.items() if self._fetcher.position(p) is None})

    async def _starts(self, partitions: TopicPartitions) -> dict[Partition, int]:
        if self._plan.rewind_ms is not None:
            return await self._cluster.at_time(partitions, now_ms() - self._plan.rewind_ms)
        committed = {} if self._member is None else await self._member.committed(partitions)
        new = partitions - committed.keys()
        return committed | (await self._cluster.begins(new) if new else {})

    async def _ask_ends(self, reached: asyncio.Future[bool], goal: _Goal) -> None:
        held = goal.partitions <= self._holding.held
        ends = await self._cluster.ends(goal.partitions) if held else {}
        if reached.done():
            return
        if not goal.partitions <= self._holding.held:
            _settle(reached, all_read=False)
        elif self._holding.aim(reached, ends) or not goal.wait:
            _settle(reached, all_read=True)

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
                return  # a rebalance came first; it stays due
        except KafkaError as error:
            _log.warning("group %s: commit failed: %r", self._plan.group, error)
            return
        self._book.committed(positions)
        COMMITS.labels(self._plan.group).inc()

    async def _commit_last(self) -> None:
        """Commit before the group is joined again or left, in bounded time. Raises nothing."""
        if self._plan.commit != "never":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_COMMIT_S):
                    await self._commit_now()


def _settle(reached: asyncio.Future[bool], *, all_read: bool) -> None:
    if not reached.done():
        reached.set_result(all_read)
