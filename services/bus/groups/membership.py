"""Membership in a consumer group: joining, heartbeats and committed offsets.

aiokafka's group coordinator is used without its consumer, whose way of reading costs too much (see ``fetcher``).
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
"""So long that only heartbeats decide about liveness: reading may pause while the handler has no room."""

HEARTBEATS_PER_SESSION: Final = 10
"""A heartbeat's answer says that the group is joined again, so a lost member is replaced after the timeout and a tenth
of it at most."""

HASTE_S: Final = 0.05
"""Interval of heartbeats while another member hands numbers over, so that the next rebalance starts soon."""


class Term(NamedTuple):
    """One assignment of one member. A member that the group has removed joins again with another id."""

    member_id: str
    generation: int


NO_TERM: Final = Term("", -1)


def request_timeout_ms(settings: BusSettings) -> int:
    """Allow for a join, which is answered when all members have rejoined or timed out."""
    return settings.session_timeout_ms + REQUEST_TIMEOUT_MS


class GroupMembership:
    """One member of a group.

    Args:
        cluster: Open, and with a request timeout of ``request_timeout_ms``.
        instance_id: Static membership; None for none.
        held: Returns the partitions that are held now; a rebalance should leave them with this member.
        hands_over: Whether the group must not give a held partition to another member before ``rejoin`` was called.
        revoked: Awaited before the member rejoins; heartbeats continue meanwhile.
        assigned: Called with each assignment and its term; must return at once, because heartbeats begin only then.
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
        """Raise a ``KafkaError`` when the membership fails."""
        while True:
            failure = asyncio.get_running_loop().create_future()
            self._failures.add(failure)
            await asyncio.wait(
                {failure, self._coordinator._coordination_task},  # noqa: SLF001 - its end has no other sign
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._failures.discard(failure)
            if self._coordinator._coordination_task.cancelled():  # noqa: SLF001
                raise KafkaError("the membership was cancelled")  # its own CancelledError would end us in silence
            self._coordinator.check_errors()
            failure.result()

    @property
    def known(self) -> bool:
        """Whether the group knew this member at its last answer."""
        return bool(self._coordinator.generation > 0)

    @property
    def in_session(self) -> bool:
        """Whether the group cannot have given our partitions to others. A paused process cannot know of a removal.

        The session time counts from when the last request that the group answered was sent.
        """
        fresh = time.monotonic() - self._coordinator.contact_s < self._session_s
        same = bool(self._coordinator.working_term.member_id == self._coordinator.member_id)
        return self.known and same and (fresh or bool(self._coordinator.joining))

    @property
    def handing_over(self) -> frozenset[int]:
        """Return the numbers of the partitions that have no owner until this member rejoins."""
        return self._assignor.handing_over

    def holds(self, partition: Partition) -> bool:
        """Whether no other member can have this partition now."""
        assignment = self._subscription.subscription and self._subscription.subscription.assignment
        if assignment is None:
            return False
        return TopicPartition(*partition) in assignment.tps or partition[1] in self._assignor.handing_over

    def take_over(self, term: Term) -> bool:
        """Note that the reader works on this term's assignment now: what it has done may be committed.

        Return whether the group had removed us since the term before. If so, other members may have had our partitions.
        """
        removed = bool(term.member_id != self._coordinator.working_term.member_id)
        self._coordinator.working_term = term
        return removed

    def rejoin(self) -> None:
        """Give up the numbers that are being handed over, and join again."""
        self._coordinator.request_rejoin()

    async def hasten(self) -> None:
        """Send heartbeats often while other members hand numbers over, but no longer than the session timeout."""
        coordinator, end_s = self._coordinator, time.monotonic() + self._session_s
        generation = coordinator.generation
        while self._assignor.unfinished and coordinator.generation == generation and time.monotonic() < end_s:
            if coordinator.joining or coordinator._rejoin_needed_fut.done():  # noqa: SLF001
                return
            await coordinator._do_heartbeat()  # noqa: SLF001 - it asks for the rejoin by itself
            await asyncio.sleep(HASTE_S)

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the group's committed offsets; leave out a partition without one. Retry without limit."""
        found = await self._coordinator.fetch_committed_offsets([TopicPartition(*p) for p in partitions])
        return {(tp.topic, tp.partition): at.offset for tp, at in found.items()}

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Commit offsets; retry without limit. Return false if a rebalance came first; then none is committed."""
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
        """Leave the group, unless the membership is static; takes twice ``CLOSE_S`` at most."""
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
"""A third group of connections, after aiokafka's own two."""


class _Coordinator(GroupCoordinator):  # type: ignore[misc]
    """Corrects aiokafka 0.14 in four places.

    It takes a group-level error of an OffsetFetch for "nothing committed". Apache Kafka sends such an error while it
    loads the group, as after a restart of the broker; the member would begin at the oldest or the newest record. Raised
    here, the error makes aiokafka ask again.

    It takes the refusal of a commit for our expulsion, even when the commit names a generation that is over: the member
    would join as a new one, and read again what it has begun.

    It commits in whatever generation it is. A member that was removed and joins again may be in a new one before it has
    its assignment; what it did in the old one would move offsets back that the next owner has committed since.

    A broker answers the requests of a connection in turn, and a join only once all members have joined. So what must
    not wait for other members has a connection of its own meanwhile.

    Attributes:
        contact_s: When the request was sent that the group last answered, by the monotonic clock.
        joining: Whether the group waits for other members before it answers our join. It does not remove us meanwhile.
        rebalancing: Whether a join was sent, and its assignment has not come.
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
        """Whether what the reader has done may be committed: not between a join's answer and its assignment."""
        return (self.joining or not self.rebalancing) and self.term == self.working_term

    async def abandon_join(self) -> None:
        """Leave the group without the answer to the join under way."""
        node, member_id = self.coordinator_id, self.member_id
        self._coordination_task.cancel()
        await asyncio.wait({self._coordination_task})
        if node is not None and member_id and self._group_instance_id is None:
            await self._client.send(node, LeaveGroupRequest(self.group_id, member_id), group=_BESIDE_JOIN)
        self.reset_generation()  # ``close`` need not leave again

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
        if self.term != self.working_term:  # since the commit was asked for
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
    """aiokafka's callbacks, with partitions as plain pairs."""

    def __init__(self, revoked: Callable[[], Awaitable[None]], assigned: Callable[[TopicPartitions], None]) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, _: Any) -> None:
        await self._revoked()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._assigned(frozenset((tp.topic, tp.partition) for tp in assigned))
