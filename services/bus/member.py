"""Membership in a consumer group: joining, heartbeats, committed offsets; reading is not its business.

aiokafka's group coordinator is used without its consumer, whose way of reading costs too much (see ``fetcher``).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import CommitFailedError, NotCoordinatorForGroupError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from services.bus.assignor import Claim, StickyByNumber
from services.bus.cluster import Cluster
from services.bus.fetch_wire import Partition
from services.bus.kafka import REQUEST_TIMEOUT_MS, RETRY_BACKOFF_MS, bounded
from services.bus.records import TopicPartitions
from services.bus.settings import BusSettings

NEVER_MS: Final = 86_400_000
"""Liveness is the heartbeat's business alone: the loop may rest while its handler has no room."""


HEARTBEATS: Final = 10
"""In a session timeout. The answer to one tells that the group is joined again, so a member that is gone is replaced
after the timeout and a tenth of it at most."""


def request_timeout_ms(settings: BusSettings) -> int:
    """A join is answered when all members have rejoined or timed out, so requests may take that much longer."""
    return settings.session_timeout_ms + REQUEST_TIMEOUT_MS


class Member:
    """One member of a group.

    A member gets the same partition numbers of all topics, so that what is said about one request is read by one
    process.

    Args:
        cluster: Open, and with a request timeout of ``request_timeout_ms``.
        settings: For the session timeout.
        group: The group.
        topics: Of which it wants partitions.
        instance_id: Static membership; None for none.
        held: What is held now, which a rebalance should leave here.
        revoked: Awaited before the group is joined again; heartbeats go on meanwhile.
        assigned: Called when partitions were given; must return at once, because heartbeats begin only then.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: BusSettings,
        *,
        group: str,
        topics: Iterable[str],
        instance_id: str | None,
        held: Callable[[], TopicPartitions],
        revoked: Callable[[], Awaitable[None]],
        assigned: Callable[[TopicPartitions], None],
    ) -> None:
        self.was_out = True
        """Whether the group had gone on without us when it was joined last: others may have had our partitions."""
        self._revoked = revoked
        self._held = held
        self._alarms: set[asyncio.Future[None]] = set()
        self._subscription: Any = SubscriptionState()
        self._subscription.register_fetch_waiters(self._alarms)  # the coordinator fails these when it cannot go on
        self._subscription.subscribe(topics=set(topics), listener=_Listener(self._on_revoked, assigned))
        self._coordinator: Any = _Coordinator(
            cluster.client,
            self._subscription,
            group_id=group,
            group_instance_id=instance_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=max(settings.session_timeout_ms // HEARTBEATS, 300),
            rebalance_timeout_ms=settings.session_timeout_ms,
            retry_backoff_ms=RETRY_BACKOFF_MS,
            max_poll_interval_ms=NEVER_MS,
            enable_auto_commit=False,
            assignors=(StickyByNumber(self._claim),),
        )

    async def watch(self) -> None:
        """Run until the membership cannot go on.

        Raises:
            KafkaError: The membership cannot go on.
        """
        while True:
            alarm = asyncio.get_running_loop().create_future()
            self._alarms.add(alarm)
            await asyncio.wait(
                {alarm, self._coordinator._coordination_task},  # noqa: SLF001 - its end has no other sign
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._alarms.discard(alarm)
            self._coordinator.check_errors()
            alarm.result()

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The group's offsets; a partition without one is left out. Retries for as long as it takes.

        Raises:
            KafkaError: The broker will not say.
        """
        found = await self._coordinator.fetch_committed_offsets([TopicPartition(*p) for p in partitions])
        return {(tp.topic, tp.partition): at.offset for tp, at in found.items()}

    async def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Writes the group's offsets; false when a rebalance came first. Retries for as long as it takes.

        Raises:
            KafkaError: The broker will not take them.
        """
        assignment = self._subscription.subscription and self._subscription.subscription.assignment
        if assignment is None:
            return False
        offsets = {TopicPartition(*partition): OffsetAndMetadata(at, "") for partition, at in positions.items()}
        if not offsets.keys() <= assignment.tps:
            return False
        try:
            await self._coordinator.commit_offsets(assignment, offsets)
        except CommitFailedError:
            return False
        return True

    async def leave(self) -> None:
        """Leaves the group, unless it is a static member; takes ``CLOSE_S`` at most."""
        await bounded(self._coordinator.close())
        task = self._coordinator._coordination_task  # noqa: SLF001 - close() gives up on a broker that is away
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _claim(self) -> Claim:
        return Claim(self._coordinator.generation, frozenset(number for _, number in self._held()))

    async def _on_revoked(self) -> None:
        self.was_out = self._coordinator.generation <= 0  # aiokafka sets it back when the group does not know us
        await self._revoked()


class _Coordinator(GroupCoordinator):  # type: ignore[misc]
    """Aiokafka 0.14's, which takes an error for the whole group for the answer that nothing was committed.

    Apache Kafka gives such an error while it loads the group, as after a restart of the broker; the member would begin
    anew at the oldest or the newest record. Raised here, it makes aiokafka ask again.
    """

    async def _send_req(self, request: Any) -> Any:
        response = await super()._send_req(request)
        code = getattr(response, "error_code", 0) if isinstance(request, OffsetFetchRequest) else 0
        if code == NotCoordinatorForGroupError.errno:
            self.coordinator_dead()
        if code:
            raise for_code(code)(self.group_id)
        return response


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Aiokafka's callbacks, with partitions as plain pairs."""

    def __init__(
        self,
        revoked: Callable[[], Awaitable[None]],
        assigned: Callable[[TopicPartitions], None],
    ) -> None:
        self._revoked = revoked
        self._assigned = assigned

    async def on_partitions_revoked(self, _: Any) -> None:
        await self._revoked()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._assigned(frozenset((tp.topic, tp.partition) for tp in assigned))
