"""A member of a consumer group.

aiokafka has no cooperative rebalancing: at every rebalance, a member gives back all its partitions before it gets its
new assignment. ``GroupReader`` commits before it gives partitions back, but continues to read them during the
rebalance. After the rebalance, it continues to read partitions that it has *kept*, and stops reading those that it
has *lost*. If it has *gained* a partition, it begins to read the partition at the committed offset, or at the beginning
if there is none. But if ``rewind_ms`` is set, it begins far enough back to rebuild a state (see ``rewound``).
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, NamedTuple

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError

from schemas.topics import Topic
from services.bus.groups.commit_tracker import CommitTracker
from services.bus.groups.committer import Committer, Settle
from services.bus.groups.held_partitions import HeldPartitions, OnAssigned
from services.bus.groups.membership import GroupMembership, MemberGeneration, request_timeout_ms
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

NO_LEADER_TOLD: Final = 5
"""The number of failed attempts to find leaders after which this is logged."""

LEADERS_CHECK_S: Final = 1.0
"""While the start offsets of gained partitions are being found, how often to check that all of them still have leaders,
in seconds."""


@dataclass(eq=False)
class GroupReader:
    """Reads the partitions that a consumer group assigns to this member.

    A partition without a committed offset is read from its beginning.

    Args:
        topics: Topics to read. A member that gets partition 3 of one topic gets partition 3 of each topic that has it.
        handler: Receives the records. It must return without waiting. If it is None, no record is read, but the group
            still assigns partitions to this member.
        record_filter: A record for which it returns false is skipped without decoding.
        include_newer: Whether the handler also gets an ``UnreadableRecord`` for each record that only a newer version
            of Railbus can decode.
        on_assigned: Called with each new assignment, after the last record of lost partitions and before the first of
            gained ones. If it raises an exception, reading ends.
        commit: When a record's offset may be committed. ``on_accept``: when the handler has returned. ``manual``: when
            ``done`` was called for the record and for all records before it. ``never``: no offset is committed.
        rewind_ms: How far back to read a gained partition, to rebuild a state, in milliseconds. Committed offsets are
            then ignored. Partitions that are gained together are all read from the same time: ``rewind_ms`` before
            the newest record among all of them. None means that reading starts at the committed offset.
        progress_topic: A topic with results, such as the router's accounts. It is used only with ``rewind_ms``.
            If it is set, ``rewind_ms`` counts back from a partition's newest result, not from the newest record.
            So if all members were down for a while, reading starts further back. ``rewound`` describes the rule.
        settle: Awaited before partitions move to another member. It must wait until the started work on these
            partitions is done, so that the other member does not do it again. Only for ``manual`` commits.
        instance_id: Id for static membership, unique in the group. A process that restarts within the session timeout
            keeps its partitions.
        least_bytes: A fetch waits for this many bytes of new records, as ``FetchConnection`` describes.
        clock: Returns microseconds of a monotonic clock, such as ``steady_us``.
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
        """Return whether it is certain that no other member has this reader's partitions."""
        return self._session is not None and self._session.in_session

    async def run(self) -> None:
        """Read until cancelled. Wait while the broker is unreachable, and log this once.

        Raises:
            UserError: The broker refuses the credentials, or does not let this user read.
        """
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                await self._run_session()
            except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
                raise UserError(f"group {self.group}: the broker does not let this user read: {error}") from None
            except KafkaError as error:
                attempt = 1 if time.monotonic() - began > HEALTHY_S else attempt + 1
                if attempt == 1:
                    _log.warning("group %s: joining again after %r", self.group, error)
                await asyncio.sleep(backoff_s(attempt))

    async def _run_session(self) -> None:
        cluster = Cluster(self.settings, f"{self.group}-reader", timeout_ms=request_timeout_ms(self.settings))
        await cluster.open()
        session: _Session | None = None
        try:
            topics = (*self.topics, self.progress_topic)
            await cluster.wait_for_topics({topic.name for topic in topics if topic is not None})
            async with asyncio.TaskGroup() as tasks:
                session = _Session(self, cluster, tasks, self._decoder, self._commits, self._partitions)
                self._session = session
                for reached, goal in self._goals.items():
                    session.set_goal(reached, goal)
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._session = None
            if session is not None:
                await session.leave()
            await cluster.close()

    async def read_to_end(self, partitions: TopicPartitions) -> bool:
        """Wait until ``partitions`` are read up to their present ends, and return true.

        Return false if one of them is not assigned to this reader, or is taken from this reader during the wait.
        """
        return await self._reach(_Goal(partitions, wait=True))

    def log_clock(self, partition: Partition) -> LogClock:
        """Return the ``LogClock`` that converts the timestamps of the partition's records to this process's clock.

        Call this each time the handler receives records. A clock from an earlier call may be out of date.
        """
        leader, since_us = self._leader(partition), self._partitions.read_up_to_us(partition)
        if self._session is not None:
            since_us = max(since_us, self._session.fetcher.read_up_to_us(partition, leader))
        return self._clocks.clock(partition, leader, since_us)

    def begin_clocks(self, partitions: TopicPartitions, newest_ms: Mapping[Partition, int]) -> None:
        self._clocks.forget(partitions)
        for partition, timestamp_ms in newest_ms.items():  # otherwise older records would seem new
            self._clocks.observe(self._leader(partition), timestamp_ms, self.clock())

    def _leader(self, partition: Partition) -> int | None:
        return None if self._session is None else self._session.cluster.leader(partition)

    async def lag(self) -> int:
        await self._reach(_Goal(self._partitions.held, wait=False))
        return self._partitions.lag

    @property
    def last_lag(self) -> int:
        return self._partitions.lag

    def done(self, topic: str, partition: int, offset: int) -> None:
        """Mark the work on a record as done, for commit mode ``manual``. If the partition was lost, do nothing."""
        self._commits.done((topic, partition), offset)
        if self._session is not None:
            self._session.committer.soon()

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
    partitions: TopicPartitions
    wait: bool  # whether the goal is to read up to the partitions' end offsets, or only to know these offsets


class _Session:
    def __init__(
        self,
        reader: GroupReader,
        cluster: Cluster,
        tasks: asyncio.TaskGroup,
        decoder: RecordDecoder,
        commits: CommitTracker,
        partitions: HeldPartitions[asyncio.Future[bool]],
    ) -> None:
        self.has_assignment = False
        self.cluster = cluster
        self.fetcher = Fetcher(
            cluster,
            decoder=decoder,
            hand_over=self._hand_over,
            in_flight_limit=reader.in_flight_limit,
            on_moved=self._on_moved,
            clock=reader.clock,
            least_bytes=reader.least_bytes,
        )
        self._member = GroupMembership(
            cluster,
            reader.settings,
            group=reader.group,
            topics=[topic.name for topic in reader.topics],
            instance_id=reader.instance_id,
            held=lambda: partitions.held,
            hands_over=reader.settle is not None,
            revoked=lambda: self.committer.before_rejoin(),  # noqa: PLW0108 - it is made below, because it needs the member
            assigned=self._assigned,
        )
        patience_s = min(LAST_COMMIT_S, reader.settings.session_timeout_ms / 4_000)
        self.committer = Committer(
            commits, self._member, group=reader.group, settle=reader.settle, patience_s=patience_s
        )
        self._reader = reader
        self._tasks = tasks
        self._commits = commits
        self._partitions = partitions
        self._partitions_changed = asyncio.Event()
        self._leaving = False
        self._untaken: tuple[TopicPartitions, MemberGeneration] | None = None  # an assignment that nothing works on yet
        tasks.create_task(self._member.watch(), name=f"{reader.group}-member")
        tasks.create_task(self.fetcher.run(), name=f"{reader.group}-reader")
        tasks.create_task(self._start_reading(), name=f"{reader.group}-places")
        tasks.create_task(self.committer.run(), name=f"{reader.group}-commits")

    @property
    def in_session(self) -> bool:
        return self.has_assignment and self._member.in_session

    def set_goal(self, reached: asyncio.Future[bool], goal: _Goal) -> None:
        start_in(self._tasks, self._ask_ends(reached, goal))

    async def leave(self) -> None:
        self._leaving = True
        self._keep_committing()
        told = (task := asyncio.current_task()) is not None and task.cancelling() > 0
        await self.committer.commit_last(LEAVING_COMMIT_S if told else LAST_COMMIT_S)
        await self._member.leave()

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
            self.committer.soon()
        for reached in self._partitions.read(progress):
            _complete(reached, all_read=True)

    def _assigned(self, partitions: TopicPartitions, generation: MemberGeneration) -> None:
        self._untaken = partitions, generation
        if self._leaving:
            self._keep_committing()
            return
        # In a task, because aiokafka would log and drop an error raised here.
        start_in(self._tasks, self._take_over(partitions, generation), f"{self._reader.group}-assignment")

    def _keep_committing(self) -> None:
        """Let a member that leaves during a rebalance commit in the new generation.

        Do nothing if ``_take_over`` has started for the new assignment. The member still cannot commit if the group
        has given it another member id.
        """
        # The broker refuses commits in an older generation. Without this, the work of a member that is stopped during a
        # rebalance would be done again by another member.
        if self._untaken is None:
            return
        partitions, generation = self._untaken
        self._untaken = None
        moving = frozenset(p for p in self._partitions.held if p[1] in self._member.handing_over)
        self._commits.forget(self._partitions.held - partitions - moving)
        self._member.stay_in(generation)

    async def _take_over(self, partitions: TopicPartitions, generation: MemberGeneration) -> None:
        self._untaken = None
        member = self._member
        # After a removal, other members may have had these partitions. A work queue continues at the committed offset;
        # a fold continues at its own position, because only the records that it has read matter.
        removed = member.take_over(generation)
        stale = self._reader.rewind_ms is None and removed
        moving = frozenset() if stale else frozenset(p for p in self._partitions.held if p[1] in member.handing_over)
        self._assign(partitions, partitions if stale else NOTHING, moving)
        self.has_assignment = True
        REBALANCES.labels(self._reader.group).inc()
        if member.handing_over:
            await self.committer.hand_over(moving)
        else:
            await member.hasten()

    def _on_moved(self, partition: Partition, _: int, begin: int) -> None:
        if self._reader.rewind_ms is None:
            self._partitions.positions[partition] = begin
            self._reader.begin_clocks(frozenset({partition}), {})
        else:
            held = self._partitions.held  # the state of the partition number is built again from the log
            self._assign(held, frozenset(each for each in held if each[1] == partition[1]))

    def _assign(self, partitions: TopicPartitions, anew: TopicPartitions, moving: TopicPartitions = NOTHING) -> None:
        assignment, _ = self._partitions.assign(partitions, anew)
        for reached, goal in self._reader._goals.items():  # noqa: SLF001 - also those whose ends are not known yet
            if not assignment.lost.isdisjoint(goal.partitions):
                _complete(reached, all_read=False)
        self.fetcher.drop(tuple(assignment.lost))
        self._commits.forget((assignment.lost | assignment.gained) - moving)
        if self._reader.on_assigned is not None:
            self._reader.on_assigned(assignment)
        self._partitions_changed.set()

    async def _start_reading(self) -> None:
        while True:
            await self._partitions_changed.wait()
            self._partitions_changed.clear()
            if self._reader.handler is None:
                continue
            for attempt in itertools.count():
                if led := self._led(self._partitions.without_position):
                    await self._begin_while_led(led)
                known = self._partitions.positions  # in a new session, also those of kept partitions
                self.fetcher.start_at({p: at for p, at in known.items() if self.fetcher.position(p) is None})
                if not (left := self._partitions.without_position):
                    break
                if attempt == NO_LEADER_TOLD:
                    names = sorted({f"{topic}[{number}]" for topic, number in left})
                    _log.warning("group %s: waiting for a leader, to read %s", self._reader.group, ", ".join(names))
                await asyncio.sleep(backoff_s(attempt))
                await self.cluster.refresh()

    def _led(self, partitions: TopicPartitions) -> TopicPartitions:
        # Without the partition numbers of which a partition has no leader. They would delay all others.
        wanted, progress = set(partitions), self._reader.progress_topic
        if progress is not None:
            wanted |= {(progress.name, number) for _, number in partitions}
        leaderless = {partition[1] for partition in wanted if self.cluster.leader(partition) is None}
        return frozenset(partition for partition in partitions if partition[1] not in leaderless)

    async def _begin_while_led(self, partitions: TopicPartitions) -> None:
        beginning = asyncio.ensure_future(self._begin(partitions))
        try:
            while not (await asyncio.wait({beginning}, timeout=LEADERS_CHECK_S))[0]:
                if self._led(partitions & self._partitions.held) != partitions:
                    return
            beginning.result()
        finally:
            beginning.cancel()

    async def _begin(self, new: TopicPartitions) -> None:
        asked_us = self._reader.clock()
        ends = await self.cluster.end_offsets(new)
        newest = {at: record.timestamp for at, record in (await newest_records(self.cluster, ends)).items()}
        starts = await self._starts(new, newest)
        self._reader.begin_clocks(new, newest)
        self._partitions.note_ends(ends, asked_us)
        for reached in self._partitions.start_at(starts):
            _complete(reached, all_read=True)

    async def _starts(self, partitions: TopicPartitions, newest: Mapping[Partition, int]) -> dict[Partition, int]:
        if self._reader.rewind_ms is not None:
            # Count back from the newest record, because our wall clock may be ahead of the broker's. If our time
            # is earlier, use it: a record may have a future time that its writer set, from before ``LogAppendTime``.
            end_ms = min(max(newest.values(), default=now_ms()), now_ms())
            topic, rewind_ms = self._reader.progress_topic, self._reader.rewind_ms
            return await rewound(self.cluster, partitions, topic, end_ms, rewind_ms)
        committed = await self._member.committed(partitions)
        new = partitions - committed.keys()
        return committed | (await self.cluster.beginning_offsets(new) if new else {})

    async def _ask_ends(self, reached: asyncio.Future[bool], goal: _Goal) -> None:
        held = goal.partitions <= self._partitions.held
        asked_us = self._reader.clock()
        ends = await self.cluster.end_offsets(goal.partitions) if held else {}
        if not goal.partitions and self.has_assignment:
            await self.cluster.wait_for_answer()  # no end was asked for, and a caller concludes that the broker answers
        for other in self._partitions.lower_goals(ends, asked_us):
            _complete(other, all_read=True)
        if reached.done():
            return
        if not goal.partitions <= self._partitions.held:
            _complete(reached, all_read=False)
        elif self._partitions.set_goal(reached, ends, asked_us) or not goal.wait:
            _complete(reached, all_read=True)


def _complete(reached: asyncio.Future[bool], *, all_read: bool) -> None:
    if not reached.done():
        reached.set_result(all_read)
