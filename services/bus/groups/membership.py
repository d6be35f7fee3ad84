"""Membership in a consumer group: joining, heartbeats and committed offsets.

aiokafka's group coordinator is used, but not its consumer, whose read loop costs too much CPU (see ``fetcher``).
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
"""Number of heartbeats in one session timeout. The answer to a heartbeat tells a member to rejoin, so a lost member is
replaced after 1.1 session timeouts at most."""

HASTE_S: Final = 0.05
"""Seconds between heartbeats while another member hands partitions over, so that the next rebalance starts soon."""


class Term(NamedTuple):
    """Identifies one assignment of one member. A member that the group has removed gets another id when it rejoins."""

    member_id: str
    generation: int


NO_TERM: Final = Term("", -1)


def request_timeout_ms(settings: BusSettings) -> int:
    """Return a timeout long enough for a join, which is answered only when all members have rejoined or timed out."""
    return settings.session_timeout_ms + REQUEST_TIMEOUT_MS


class GroupMembership:
    """One member of a group.

    Args:
        cluster: An open ``Cluster`` whose request timeout is ``request_timeout_ms``.
        instance_id: Id for static membership; None for dynamic membership.
        held: Returns the partitions that this member has now. A rebalance should not move them.
        hands_over: Whether other members may get this member's partitions only after ``rejoin`` was called.
        revoked: Awaited before the member rejoins. Heartbeats continue meanwhile.
        assigned: Called with each assignment and its term. It must return at once, because heartbeats start only then.
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
        assigned: Callable[[TopicPartitions, Term], None],
    ) -> None:
        self._assigned = assigned
        self._held = held
        self._hands_over = hands_over
        self._session_s = settings.session_timeout_ms / 1_000
        self._assignor = StickyNumberAssignor(self._owned)
        self._failures: set[asyncio.Future[None]] = set()
        self._subscription: Any = SubscriptionState()
        self._subscription.register_fetch_waiters(self._failures)  # the coordinator fails these when it fails
        self._subscription.subscribe(topics=set(topics), listener=_RebalanceListener(revoked, self._on_assigned))
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
        """Wait until the membership fails, and then raise a ``KafkaError``."""
        while True:
            failure = asyncio.get_running_loop().create_future()
            self._failures.add(failure)
            await asyncio.wait(
                {failure, self._coordinator._coordination_task},  # noqa: SLF001 - nothing else reports its end
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._failures.discard(failure)
            if self._coordinator._coordination_task.cancelled():  # noqa: SLF001
                raise KafkaError("the membership was cancelled")  # its CancelledError would end us without an error
            self._coordinator.check_errors()
            failure.result()

    @property
    def known(self) -> bool:
        """Return whether the group's last answer treated this process as a member."""
        return bool(self._coordinator.generation > 0)

    @property
    def in_session(self) -> bool:
        """Return whether the group cannot have assigned this member's partitions to other members.

        A process that was paused does not know whether the group has removed it. So the answer is false if a session
        timeout has passed since the last answered request was sent, except while a join is in progress.
        """
        fresh = time.monotonic() - self._coordinator.contact_s < self._session_s
        same = bool(self._coordinator.working_term.member_id == self._coordinator.member_id)
        return self.known and same and (fresh or bool(self._coordinator.joining))

    @property
    def handing_over(self) -> frozenset[int]:
        """Return the partition numbers that have no owner until this member rejoins."""
        return self._assignor.handing_over

    def holds(self, partition: Partition) -> bool:
        """Return whether no other member can have this partition now."""
        assignment = self._subscription.subscription and self._subscription.subscription.assignment
        if assignment is None:
            return False
        return TopicPartition(*partition) in assignment.tps or partition[1] in self._assignor.handing_over

    def take_over(self, term: Term) -> bool:
        """Record that the reader works on this term's assignment from now on, so that its work may be committed.

        Return whether the group has removed this member since the previous term. If so, other members may have had its
        partitions in between.
        """
        removed = bool(term.member_id != self._coordinator.working_term.member_id)
        self._coordinator.working_term = term
        return removed

    def rejoin(self) -> None:
        """Give up the partition numbers that are being handed over, and join the group again."""
        self._coordinator.request_rejoin()

    async def hasten(self) -> None:
        """Send frequent heartbeats while other members hand partitions over, for one session timeout at most."""
        coordinator, end_s = self._coordinator, time.monotonic() + self._session_s
        generation = coordinator.generation
        while self._assignor.unfinished and coordinator.generation == generation and time.monotonic() < end_s:
            if coordinator.joining or coordinator._rejoin_needed_fut.done():  # noqa: SLF001
                return
            await coordinator._do_heartbeat()  # noqa: SLF001 - it requests the rejoin itself
            await asyncio.sleep(HASTE_S)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the group's committed offsets. A partition without one is left out. Retry without limit."""
        found = await self._coordinator.fetch_committed_offsets([TopicPartition(*p) for p in partitions])
        return {(tp.topic, tp.partition): at.offset for tp, at in found.items()}

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Commit offsets; retry without limit. If a rebalance prevents it, commit no offset, and return false."""
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
        """End the membership. Leave the group, unless the membership is static. Takes two times ``CLOSE_S`` at most."""
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

    def _on_assigned(self, partitions: TopicPartitions) -> None:
        self._assigned(partitions, self._coordinator.term)


_STILL_A_MEMBER: Final = frozenset({NoError.errno, RebalanceInProgressError.errno})
_NOT_A_MEMBER: Final = frozenset({IllegalGenerationError.errno, UnknownMemberIdError.errno})
_BESIDE_JOIN: Final = 2
"""Id of the connection group for requests that must not wait for a join. aiokafka itself uses two other ids."""


class _Coordinator(GroupCoordinator):  # type: ignore[misc]
    """aiokafka's group coordinator, with four corrections to version 0.14.

    1. aiokafka treats a group-level error of an OffsetFetch as "nothing committed". Apache Kafka sends such an error
       while it loads the group, for example after a restart of the broker. The member would then start at the oldest or
       the newest record. This class raises the error, so that aiokafka sends the request again.

    2. If a commit is refused, aiokafka concludes that the group has removed the member, even if the commit named an old
       generation. The member would then join as a new one, and read again the records that it is working on. This class
       reports a rebalance instead.

    3. aiokafka commits in the current generation. A member that was removed and joins again may be in a new generation
       before it has its assignment. If it then committed its old work, it would replace later offsets, which the next
       owner has committed, by earlier ones. This class commits only work on the current generation's assignment.

    4. A broker answers the requests of one connection in order, and it answers a join only after all members have
       joined. So while a join is in progress, this class sends commits and leave requests over another connection.

    Attributes:
        contact_s: When the newest answered request to the group was sent, in seconds of the monotonic clock.
        joining: Whether the group waits for other members before it answers our join. Meanwhile it does not remove us.
        rebalancing: Whether a join was sent and its assignment has not arrived.
        working_term: The term whose assignment the reader works on.
    """

    contact_s = float("-inf")
    joining = False
    rebalancing = False
    working_term = NO_TERM

    @property
    def term(self) -> Term:
        return Term(self.member_id, self.generation)

    @property
    def may_commit(self) -> bool:
        """Return whether finished work may be committed; false between the answer to a join and the assignment."""
        return (self.joining or not self.rebalancing) and self.term == self.working_term

    async def abandon_join(self) -> None:
        """Leave the group without waiting for the answer to the join in progress."""
        node, member_id = self.coordinator_id, self.member_id
        self._coordination_task.cancel()
        await asyncio.wait({self._coordination_task})
        if node is not None and member_id and self._group_instance_id is None:
            await self._client.send(node, LeaveGroupRequest(self.group_id, member_id), group=_BESIDE_JOIN)
        self.reset_generation()  # so that ``close`` does not leave again

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
        if isinstance(request, OffsetFetchRequest) and (code := getattr(response, "error_code", 0)):
            if code == NotCoordinatorForGroupError.errno:
                self.coordinator_dead()
            raise for_code(code)(self.group_id)
        return response

    async def _join(self, request: Any) -> Any:
        self.joining, self.rebalancing = self.generation > 0, True
        joined = False
        try:
            response = await super()._send_req(request)
            joined = response.error_code == NoError.errno
        finally:
            self.joining, self.rebalancing = False, joined
        return response

    async def _commit(self, request: Any) -> Any:
        if self.term != self.working_term:  # it changed after the commit was requested
            raise RebalanceInProgressError(self.group_id)
        generation = self.generation
        if self.joining and self.coordinator_id is not None:
            response = await self._client.send(self.coordinator_id, request, group=_BESIDE_JOIN)
        else:
            response = await super()._send_req(request)
        codes = {code for _, partitions in response.topics for _, code in partitions}
        if codes & _NOT_A_MEMBER and (self.rebalancing or generation != self.generation):
            raise RebalanceInProgressError(self.group_id)
        return response


class _RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forwards aiokafka's callbacks, with each partition as a pair of topic name and partition number."""

    def __init__(self, revoked: Callable[[], Awaitable[None]], assigned: Callable[[TopicPartitions], None]) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, _: Any) -> None:
        await self._revoked()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._assigned(frozenset((tp.topic, tp.partition) for tp in assigned))
