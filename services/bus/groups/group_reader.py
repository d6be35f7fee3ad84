"""A member of a consumer group. The members share the partitions, and the group stores the committed offsets.

aiokafka has no cooperative assignment. At every rebalance, a member gives back all partitions and is assigned new ones.
Before a ``GroupReader`` gives partitions back, it commits. It does not stop reading while it rejoins. Once assigned, it
continues to read *kept* partitions, reads *gained* ones from their start offsets, and drops *lost* ones.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, NamedTuple

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from schemas.topics import Topic
from services.bus.groups.commit_tracker import CommitTracker
from services.bus.groups.committer import Committer, Settle
from services.bus.groups.held_partitions import HeldPartitions, OnAssigned
from services.bus.groups.membership import GroupMembership, Term, request_timeout_ms
from services.bus.groups.rewind import rewound
from services.bus.in_flight_limit import InFlightLimit
from services.bus.kafka.broker_health import backoff_s
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetcher import Events, Fetcher, newest_records
from services.bus.read.log_clock import LogClock, LogClocks
from services.bus.read.record_decoder import RecordDecoder
from services.bus.records import Partition, RecordFilter, RecordHandler, TopicPartitions
from services.bus.settings import BusSettings
from services.runtime.clock import now_ms, steady_us
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.runtime.metrics import REBALANCES
from services.runtime.task_groups import first_error, start_in

_log = logger("bus")

CommitMode = Literal["on_accept", "manual", "never"]

NOTHING: Final[TopicPartitions] = frozenset()

HEALTHY_S: Final = 30.0
"""If a membership lasted longer than this many seconds, its failure is logged, and the backoff starts over."""

LAST_COMMIT_S: Final = 3.0
"""Maximum time in seconds for the last commit before partitions are given away."""

LEAVING_COMMIT_S: Final = 10.0
"""Maximum time in seconds for the last commit of a member that stops. It allows for a short outage of the broker."""


@dataclass(eq=False)
class GroupReader:
    """Reads the partitions that the group assigns. A partition without a committed offset is read from its beginning.

    Args:
        topics: Topics to read. If several have equally many partitions, a member gets the same numbers of all of them.
        handler: See ``RecordHandler``. With None, no record is read; the group only assigns partitions.
        record_filter: Records for which it returns false are skipped without decoding.
        include_newer: Hand over records that need a newer reader as ``UnreadableRecord``; if false, only count them.
        on_assigned: Called with every assignment, after the last record of each lost partition and before the first
            record of each gained one. An exception ends reading.
        commit: ``on_accept`` commits a record when the handler has returned; ``manual`` when ``done`` was called for it
            and for all records before it; ``never`` does not commit.
        rewind_ms: For readers that fold the log: reading starts this many milliseconds before the newest record of all
            gained partitions, and committed offsets are ignored.
        progress_topic: With ``rewind_ms``: the topic to which members write the outcome of their work. Its newest
            record with the same partition number shows when a gained partition was last worked on. Requests that were
            open then still are. So reading starts ``rewind_ms`` before that record, at most ``LONGEST_OUTAGE_MS`` back.
            If that record is an account with an earlier ``open_since``, reading starts at ``open_since``.
        clock: Returns the microseconds of a clock that nobody adjusts, such as ``steady_us``.
        settle: With ``manual``: lets a partition move to another member without work being done twice, by means of a
            second rebalance. First, ``on_assigned`` reports the partition as lost. Then ``settle`` is awaited, for a
            quarter of the session timeout at most. Another member reads only after finished work is committed.
        instance_id: Id for static membership. A process that restarts within the session timeout keeps its partitions.
            Two processes with the same id would take the partitions from each other for ever.
        least_bytes: See ``FetchConnection``.
    """

    settings: BusSettings
    _: KW_ONLY
    topics: Sequence[Topic]
    group: str
    handler: RecordHandler | None
    record_filter: RecordFilter | None = None
    include_newer: bool = False
    in_flight_limit: InFlightLimit | None = None
    on_assigned: OnAssigned | None = None
    commit: CommitMode = "on_accept"
    rewind_ms: int | None = None
    progress_topic: Topic | None = None
    settle: Settle | None = None
    instance_id: str | None = None
    least_bytes: int = 1
    clock: Callable[[], int] = steady_us

    def __post_init__(self) -> None:
        self._decoder = RecordDecoder(self.record_filter, include_newer=self.include_newer)
        self._commits = CommitTracker()
        self._partitions = HeldPartitions[asyncio.Future[bool]]()
        self._goals: dict[asyncio.Future[bool], _Goal] = {}
        self._session: _Session | None = None
        self._clocks = LogClocks()

    @property
    def joined(self) -> bool:
        """Return whether this reader is a member of the group and has an assignment, even an empty one."""
        return self._session is not None and self._session.has_assignment

    @property
    def in_session(self) -> bool:
        """Return whether only we can have our partitions; after the process paused, false until the group answers."""
        return self._session is not None and self._session.in_session

    async def run(self) -> None:
        """Read until cancelled. Wait while the broker is unreachable, and log this once.

        Raises:
            UserError: The broker refuses the credentials, or does not let this user read.
        """
        attempt = 0
        while True:
            began = time.monotonic()
            self._session = _Session(self, self._decoder, self._commits, self._partitions)
            for reached, goal in self._goals.items():
                self._session.set_goal(reached, goal)
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
        """Wait without limit until ``partitions`` are read up to their present ends; false if a partition is lost."""
        return await self._reach(_Goal(partitions, wait=True))

    def log_clock(self, partition: Partition) -> LogClock:
        """Return the clock of a partition, for the records that are being handed over now."""
        leader, since_us = (None, 0) if self._session is None else self._session.read_up_to_us(partition)
        return self._clocks.clock(partition, leader, max(since_us, self._partitions.read_up_to_us(partition)))

    def begin_clocks(self, partitions: TopicPartitions, newest_ms: Mapping[Partition, int]) -> None:
        """Reset these partitions' clocks. Pass them the newest records' times, so that older ones do not seem new."""
        self._clocks.forget(partitions)
        for partition, timestamp_ms in newest_ms.items():
            self._clocks.observe(self._leader(partition), timestamp_ms, self.clock())

    def _leader(self, partition: Partition) -> int | None:
        return None if self._session is None else self._session.leader(partition)

    async def lag(self) -> int:
        """Return the number of unread records of the held partitions. Wait while the broker is unreachable."""
        await self._reach(_Goal(self._partitions.held, wait=False))
        return self._partitions.lag

    @property
    def last_lag(self) -> int:
        return self._partitions.lag

    def done(self, topic: str, partition: int, offset: int) -> None:
        """Mark the work on a record as done (commit mode ``manual``). Ignore a record of a lost partition."""
        self._commits.done((topic, partition), offset)
        if self._session is not None:
            self._session.commit_soon()

    async def _reach(self, goal: "_Goal") -> bool:
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._goals[reached] = goal
        try:
            if self._session is not None:
                self._session.set_goal(reached, goal)
            return await reached
        finally:
            del self._goals[reached]
            self._partitions.forget_goal(reached)


class _Goal(NamedTuple):
    """A request for partitions' end offsets. With ``wait``, it is met when reading has reached these offsets."""

    partitions: TopicPartitions
    wait: bool


class _Session:
    """One membership, from joining to leaving the group. State that outlives it is kept in the ``GroupReader``."""

    def __init__(
        self,
        reader: GroupReader,
        decoder: RecordDecoder,
        commits: CommitTracker,
        partitions: HeldPartitions[asyncio.Future[bool]],
    ) -> None:
        self.has_assignment = False
        self._reader = reader
        self._commits = commits
        self._partitions = partitions
        settings = reader.settings
        self._cluster = Cluster(settings, f"{reader.group}-reader", timeout_ms=request_timeout_ms(settings))
        self._fetcher = Fetcher(
            self._cluster,
            decoder=decoder,
            hand_over=self._hand_over,
            in_flight_limit=reader.in_flight_limit,
            on_moved=self._on_moved,
            clock=reader.clock,
            least_bytes=reader.least_bytes,
        )
        self._topics = [topic.name for topic in reader.topics]
        self._member: GroupMembership | None = None
        self._committer: Committer | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._partitions_changed = asyncio.Event()
        self._early_goals: list[tuple[asyncio.Future[bool], _Goal]] = []

    @property
    def in_session(self) -> bool:
        return self.has_assignment and self._member is not None and self._member.in_session

    async def run(self) -> None:
        """Run until cancelled. A ``KafkaError`` ends this membership; the caller may start another."""
        await self._cluster.open()
        try:
            progress = self._reader.progress_topic
            await self._cluster.wait_for_topics({*self._topics, *(() if progress is None else (progress.name,))})
            async with asyncio.TaskGroup() as self._tasks:
                self._member = self._join()
                self._committer = self._make_committer(self._member)
                self._tasks.create_task(self._member.watch(), name=f"{self._reader.group}-member")
                self._tasks.create_task(self._fetcher.run(), name=f"{self._reader.group}-reader")
                self._tasks.create_task(self._start_reading(), name=f"{self._reader.group}-places")
                if self._reader.commit != "never":
                    self._tasks.create_task(self._committer.run(), name=f"{self._reader.group}-commits")
                for reached, goal in self._early_goals:
                    self._tasks.create_task(self._ask_ends(reached, goal))
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._tasks = None
            self.has_assignment = False
            if self._member is not None:
                told = (task := asyncio.current_task()) is not None and task.cancelling() > 0
                await self._commit_last(LEAVING_COMMIT_S if told else LAST_COMMIT_S)
                await self._member.leave()
            await self._cluster.close()

    def set_goal(self, reached: asyncio.Future[bool], goal: _Goal) -> None:
        """Request the end offsets for ``goal``, now or once connected. Complete the future ``reached`` at the goal."""
        if self._tasks is None:
            self._early_goals.append((reached, goal))
        else:
            start_in(self._tasks, self._ask_ends(reached, goal))

    def leader(self, partition: Partition) -> int | None:
        return self._cluster.leader(partition)

    def read_up_to_us(self, partition: Partition) -> tuple[int | None, int]:
        """Return the partition's leader and the result of ``Fetcher.read_up_to_us``."""
        leader = self._cluster.leader(partition)
        return leader, self._fetcher.read_up_to_us(partition, leader)

    def commit_soon(self) -> None:
        if self._committer is not None:
            self._committer.soon()

    def _join(self) -> GroupMembership:
        reader = self._reader
        return GroupMembership(
            self._cluster,
            reader.settings,
            group=reader.group,
            topics=self._topics,
            instance_id=reader.instance_id,
            held=lambda: self._partitions.held,
            hands_over=reader.settle is not None,
            revoked=self._before_rejoin,
            assigned=self._assigned,
        )

    def _make_committer(self, member: GroupMembership) -> Committer:
        group, settle = self._reader.group, self._reader.settle
        patience_s = min(LAST_COMMIT_S, self._reader.settings.session_timeout_ms / 4_000)
        return Committer(self._commits, member, group=group, settle=settle, patience_s=patience_s)

    def _hand_over(self, events: Events, progress: Mapping[Partition, int]) -> None:
        reader = self._reader
        if reader.commit == "manual":  # before the handler, which may call ``done`` at once
            kept: dict[Partition, list[int]] = {partition: [] for partition in progress}
            for event in events:
                kept[event.topic, event.partition].append(event.offset)
            for partition, next_offset in progress.items():
                self._commits.read(partition, next_offset, kept[partition])
        if events and reader.handler is not None:
            reader.handler(events)
        if reader.commit == "on_accept":
            for partition, next_offset in progress.items():
                self._commits.read(partition, next_offset)
        if reader.commit != "never":
            self.commit_soon()
        for reached in self._partitions.read(progress):
            _complete(reached, all_read=True)

    def _assigned(self, partitions: TopicPartitions, term: Term) -> None:
        """Start a task that takes over the assignment, because aiokafka would log and drop an error raised here."""
        start_in(self._tasks, self._take_over(partitions, term), f"{self._reader.group}-assignment")

    async def _take_over(self, partitions: TopicPartitions, term: Term) -> None:
        member, committer = self._member, self._committer
        if member is None or committer is None:
            return
        # After a removal, other members may have had these partitions. A work queue continues at the committed offset;
        # a fold continues at its own position, because only the records that it has read matter.
        removed = member.take_over(term)
        stale = self._reader.rewind_ms is None and removed
        moving = frozenset() if stale else frozenset(p for p in self._partitions.held if p[1] in member.handing_over)
        self._assign(partitions, partitions if stale else NOTHING, moving)
        self.has_assignment = True
        REBALANCES.labels(self._reader.group).inc()
        if member.handing_over:
            await committer.hand_over(moving)
        else:
            await member.hasten()

    def _on_moved(self, partition: Partition, _: int, begin: int) -> None:
        """Continue at offset ``begin``. A reader that folds rebuilds its state of the partition number from the log."""
        if self._reader.rewind_ms is None:
            self._partitions.positions[partition] = begin
            self._reader.begin_clocks(frozenset({partition}), {})
        else:
            held = self._partitions.held
            self._assign(held, frozenset(each for each in held if each[1] == partition[1]))

    def _assign(self, partitions: TopicPartitions, anew: TopicPartitions, moving: TopicPartitions = NOTHING) -> None:
        assignment, missed = self._partitions.assign(partitions, anew)
        for reached in missed:
            _complete(reached, all_read=False)
        self._fetcher.drop(tuple(assignment.lost))
        self._commits.forget((assignment.lost | assignment.gained) - moving)
        if self._reader.on_assigned is not None:
            self._reader.on_assigned(assignment)
        self._partitions_changed.set()

    async def _start_reading(self) -> None:
        """After each assignment, start to read the gained partitions. In a new session, also continue the kept ones."""
        while True:
            await self._partitions_changed.wait()
            self._partitions_changed.clear()
            if self._reader.handler is None:
                continue
            if new := self._partitions.without_position:
                asked_us = self._reader.clock()
                ends = await self._cluster.end_offsets(new)
                newest = {at: record.timestamp for at, record in (await newest_records(self._cluster, ends)).items()}
                starts = await self._starts(new, newest)
                self._reader.begin_clocks(new, newest)
                self._partitions.note_ends(ends, asked_us)
                for reached in self._partitions.start_at(starts):
                    _complete(reached, all_read=True)
            known = self._partitions.positions
            self._fetcher.start_at({p: at for p, at in known.items() if self._fetcher.position(p) is None})

    async def _starts(self, partitions: TopicPartitions, newest: Mapping[Partition, int]) -> dict[Partition, int]:
        if self._reader.rewind_ms is not None:
            # Count back from the newest record, because our wall clock may be ahead of the broker's. If our time
            # is earlier, use it: a record may have a future time that its writer set, from before ``LogAppendTime``.
            end_ms = min(max(newest.values(), default=now_ms()), now_ms())
            topic, rewind_ms = self._reader.progress_topic, self._reader.rewind_ms
            return await rewound(self._cluster, partitions, topic, end_ms, rewind_ms)
        committed = {} if self._member is None else await self._member.committed(partitions)
        new = partitions - committed.keys()
        return committed | (await self._cluster.beginning_offsets(new) if new else {})

    async def _ask_ends(self, reached: asyncio.Future[bool], goal: _Goal) -> None:
        held = goal.partitions <= self._partitions.held
        asked_us = self._reader.clock()
        ends = await self._cluster.end_offsets(goal.partitions) if held else {}
        if reached.done():
            return
        if not goal.partitions <= self._partitions.held:
            _complete(reached, all_read=False)
        elif self._partitions.set_goal(reached, ends, asked_us) or not goal.wait:
            _complete(reached, all_read=True)

    async def _before_rejoin(self) -> None:
        if self._reader.commit != "never" and self._committer is not None:
            await self._committer.before_rejoin()

    async def _commit_last(self, limit_s: float) -> None:
        """Commit before leaving the group, within ``limit_s`` seconds. Never raise."""
        if self._reader.commit != "never" and self._committer is not None:
            await self._committer.commit_last(limit_s)


def _complete(reached: asyncio.Future[bool], *, all_read: bool) -> None:
    if not reached.done():
        reached.set_result(all_read)
