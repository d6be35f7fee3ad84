"""Membership in a consumer group: joining, heartbeats and committed offsets.

It uses aiokafka's group coordinator, but not aiokafka's consumer, whose read loop costs too much CPU.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    NoError,
    NotCoordinatorForGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from services.bus.groups.assignor import OwnedPartitions, StickyNumberAssignor
from services.bus.kafka.clients import REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, bounded_close
from services.bus.kafka.cluster import Cluster
from services.bus.records import Partition, TopicPartitions
from services.bus.settings import BusSettings

MAX_POLL_INTERVAL_MS: Final = 86_400_000
"""Maximum time between two polls. It is one day, so that only heartbeats decide whether a member is alive. Reading may
pause for long while the handler has no free slot."""

HEARTBEATS_PER_SESSION: Final = 10
"""Number of heartbeats in one session timeout. The response to a heartbeat tells a member to rejoin, so a lost member
is replaced after 1.1 session timeouts at most."""

HASTE_S: Final = 0.05
"""Seconds between heartbeats while another member hands partitions over, so that the next rebalance starts soon."""


class MemberGeneration(NamedTuple):
    """A member's id, and the generation of the consumer group in which the member has this id.

    A member that the group has removed joins again with a new ``member_id``.
    """

    member_id: str
    generation: int


NO_GENERATION: Final = MemberGeneration("", -1)


def request_timeout_ms(settings: BusSettings) -> int:
    # A join is answered only when all members have joined or timed out.
    return settings.session_timeout_ms + REQUEST_TIMEOUT_MS


class GroupMembership(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """One member of a group.

    Args:
        cluster: An open ``Cluster``, created with the timeout that ``request_timeout_ms`` returns.
        instance_id: Id for static membership; None for dynamic membership.
        held: Returns the partitions that this member has now.
        hands_over: Whether this member must commit its offsets before another member may get one of its partitions.
            Call ``rejoin`` after the commit.
        revoked: Awaited before the member rejoins. Meanwhile, the member continues to send heartbeats.
        assigned: Called with each assignment and the generation that it belongs to. It must return at once.
    """

    def __init__(  # noqa: PLR0913 - what a group must be told of a member, and what it asks of it
        self,
        cluster: Cluster,
        settings: BusSettings,
        *,
        group: str,
        topics: Iterable[str],
        instance_id: str | None,
        held: Callable[[], TopicPartitions],
        hands_over: bool,
        revoked: Callable[[], Awaitable[None]],
        assigned: Callable[[TopicPartitions, MemberGeneration], None],
    ) -> None:
        self._revoked = revoked
        self._assigned = assigned
        self._held = held
        self._hands_over = hands_over
        self._session_s = settings.session_timeout_ms / 1_000
        topics, known = tuple(topics), cluster.client.cluster.partitions_for_topic
        self._assignor = StickyNumberAssignor(self._owned, {topic: len(known(topic) or ()) for topic in topics})
        self._failures: set[asyncio.Future[None]] = set()
        self._subscription: Any = SubscriptionState()
        self._subscription.register_fetch_waiters(self._failures)  # the coordinator fails these when it fails
        self._subscription.subscribe(topics=set(topics), listener=self)
        self._coordinator: Any = _Coordinator(
            cluster.client,
            self._subscription,
            group_id=group,
            group_instance_id=instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=max(settings.session_timeout_ms // HEARTBEATS_PER_SESSION, 300),
            rebalance_timeout_ms=settings.session_timeout_ms,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            enable_auto_commit=False,
            assignors=(self._assignor,),
        )

    async def watch(self) -> None:
        """Wait until the membership fails. Then raise its ``KafkaError``."""
        while True:
            failure = asyncio.get_running_loop().create_future()
            self._failures.add(failure)
            await asyncio.wait(
                {failure, self._coordinator._coordination_task},  # noqa: SLF001 - nothing else reports its end
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._failures.discard(failure)
            if failure.done():
                failure.exception()  # mark it as retrieved, so that the event loop does not log it too
            if self._coordinator._coordination_task.cancelled():  # noqa: SLF001
                raise KafkaError("the membership was cancelled")  # its CancelledError would end us without an error
            self._coordinator.check_errors()
            failure.result()

    @property
    def known(self) -> bool:
        return bool(self._coordinator.generation > 0)

    @property
    def in_session(self) -> bool:
        # After a pause, this process does not know whether the group has removed it. The broker keeps a member that
        # joins, and answers the join within the session timeout.
        coordinator = self._coordinator
        heard_s = max(coordinator.contact_s, coordinator.join_s) if coordinator.joining else coordinator.contact_s
        same = coordinator.working_generation.member_id == coordinator.member_id
        return bool(self.known and same and time.monotonic() - heard_s < self._session_s)

    @property
    def handing_over(self) -> frozenset[int]:
        return self._assignor.handing_over

    def holds(self, partition: Partition) -> bool:
        """Return whether the partition is assigned to this member, or is being handed over by this member."""
        assignment = self._subscription.subscription and self._subscription.subscription.assignment
        if assignment is None:
            return False
        return TopicPartition(*partition) in assignment.tps or partition[1] in self._assignor.handing_over

    def take_over(self, generation: MemberGeneration) -> bool:
        """Allow commits in ``generation``. Call this when the reader begins to work on its assignment.

        Return true if the member id is new. A member gets a new id when it joins for the first time, and when it joins
        again after its removal from the group.
        """
        removed = bool(generation.member_id != self._coordinator.working_generation.member_id)
        self._coordinator.working_generation = generation
        return removed

    def stay_in(self, generation: MemberGeneration) -> None:
        """Allow commits in ``generation`` if this member has kept its member id. Otherwise, do nothing.

        See ``take_over`` for when a member gets a new id.
        """
        if generation.member_id == self._coordinator.working_generation.member_id:
            self._coordinator.working_generation = generation

    def rejoin(self) -> None:
        self._coordinator.request_rejoin()

    async def hasten(self) -> None:
        """While other members hand partitions over, send frequent heartbeats to learn of the next rebalance early."""
        coordinator, end_s = self._coordinator, time.monotonic() + self._session_s
        generation = coordinator.generation
        while self._assignor.unfinished and coordinator.generation == generation and time.monotonic() < end_s:
            if coordinator.joining or coordinator._rejoin_needed_fut.done():  # noqa: SLF001
                return
            await coordinator._do_heartbeat()  # noqa: SLF001 - it requests the rejoin itself
            await asyncio.sleep(HASTE_S)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the group's committed offset for each partition that has one. Retry without limit."""
        found = await self._coordinator.fetch_committed_offsets([TopicPartition(*p) for p in partitions])
        return {(tp.topic, tp.partition): at.offset for tp, at in found.items()}

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Commit offsets. Retry until the commit succeeds (return true) or a rebalance prevents it (return false)."""
        assignment = self._subscription.subscription and self._subscription.subscription.assignment
        if assignment is None or not (self.known and self._coordinator.may_commit):
            return False
        if not all(map(self.holds, positions)):
            return False
        offsets = {TopicPartition(*partition): OffsetAndMetadata(at, "") for partition, at in positions.items()}
        try:
            await self._coordinator.commit_offsets(assignment, offsets)
        except CommitFailedError:
            return False
        return True

    async def leave(self) -> None:
        """Stop the heartbeats, and leave the group at once. A static member leaves when its session times out."""
        if self._coordinator.rebalancing:
            await bounded_close(self._coordinator.abandon_join())
        await bounded_close(self._coordinator.close())
        task = self._coordinator._coordination_task  # noqa: SLF001 - close() gives up on an unreachable broker
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _owned(self) -> OwnedPartitions:
        numbers = frozenset(number for _, number in self._held())
        return OwnedPartitions(self._coordinator.generation, numbers, self._hands_over)

    async def on_partitions_revoked(self, _: Any) -> None:
        await self._revoked()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._assigned(frozenset((tp.topic, tp.partition) for tp in assigned), self._coordinator.member_generation)


_STILL_A_MEMBER: Final = frozenset({NoError.errno, RebalanceInProgressError.errno})
_NOT_A_MEMBER: Final = frozenset({IllegalGenerationError.errno, UnknownMemberIdError.errno})
_BESIDE_JOIN: Final = 2
"""Id of the connection group for requests that must not wait for a join. aiokafka itself uses two other ids."""


class _Coordinator(GroupCoordinator):  # type: ignore[misc]
    """The group coordinator of aiokafka 0.14, with errors corrected."""

    # When the newest heartbeat or SyncGroup request with a successful response was sent, in monotonic seconds.
    contact_s = float("-inf")
    # When the newest JoinGroup request was sent, in monotonic seconds.
    join_s = float("-inf")
    # Whether this member rejoins and waits for the response to its JoinGroup request. Until then, the broker keeps it.
    joining = False
    # Whether this member has sent a JoinGroup request and has not received its assignment yet.
    rebalancing = False
    # The generation of the assignment that the reader works on.
    working_generation = NO_GENERATION

    @property
    def member_generation(self) -> MemberGeneration:
        return MemberGeneration(self.member_id, self.generation)

    @property
    def may_commit(self) -> bool:
        # A member that was removed and joins again may be in a new generation before it has its assignment. aiokafka
        # would commit its old work in the new generation, and replace later offsets that the next owner has committed.
        return (self.joining or not self.rebalancing) and self.member_generation == self.working_generation

    async def abandon_join(self) -> None:
        node, member_id = self.coordinator_id, self.member_id
        self._coordination_task.cancel()
        await asyncio.wait({self._coordination_task})
        if node is not None and member_id and self._group_instance_id is None:
            await self._client.send(node, LeaveGroupRequest(self.group_id, member_id), group=_BESIDE_JOIN)
        self.reset_generation()  # so that ``close`` does not leave again

    async def _do_commit_offsets(self, assignment: Any, offsets: Any) -> None:
        # aiokafka tries a commit again in the generation that the member has by then. After a rebalance, this would
        # move back the offset of a partition that another member has now.
        if assignment is not self._subscription.subscription.assignment:
            raise RebalanceInProgressError(self.group_id)
        await super()._do_commit_offsets(assignment, offsets)

    async def _send_req(self, request: Any) -> Any:
        sent_s = time.monotonic()
        if isinstance(request, JoinGroupRequest):
            return await self._join(request)
        if isinstance(request, OffsetCommitRequest):
            return await self._commit(request)
        try:
            response = await super()._send_req(request)
        finally:
            self.rebalancing &= not isinstance(request, SyncGroupRequest)
        if isinstance(request, HeartbeatRequest | SyncGroupRequest) and response.error_code in _STILL_A_MEMBER:
            self.contact_s = sent_s
        # aiokafka takes an error of the group for "nothing committed". Kafka sends such an error while it loads the
        # group, and the member would start at the oldest or the newest record. The raise makes it ask again.
        if isinstance(request, OffsetFetchRequest) and (code := getattr(response, "error_code", 0)):
            if code == NotCoordinatorForGroupError.errno:
                self.coordinator_dead()
            raise for_code(code)(self.group_id)
        return response

    async def _join(self, request: Any) -> Any:
        self.joining, self.rebalancing = self.generation > 0, True
        self.join_s = time.monotonic()
        joined = False
        try:
            response = await super()._send_req(request)
            joined = response.error_code == NoError.errno
        finally:
            self.joining, self.rebalancing = False, joined
        return response

    async def _commit(self, request: Any) -> Any:
        if self.member_generation != self.working_generation:  # it changed after the commit was requested
            raise RebalanceInProgressError(self.group_id)
        generation = self.generation
        # A broker answers the requests of one connection in order, and a join only after all members have joined.
        if self.joining and self.coordinator_id is not None:
            response = await self._client.send(self.coordinator_id, request, group=_BESIDE_JOIN)
        else:
            response = await super()._send_req(request)
        # aiokafka concludes from a refused commit that the group has removed the member, even if the commit named an
        # old generation. The member would join as a new one, and read again the records that it is working on.
        codes = {code for _, partitions in response.topics for _, code in partitions}
        if codes & _NOT_A_MEMBER and (self.rebalancing or generation != self.generation):
            raise RebalanceInProgressError(self.group_id)
        return response
