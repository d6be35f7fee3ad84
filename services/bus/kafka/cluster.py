import asyncio
import itertools
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, LeaderNotAvailableError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.offset import OffsetRequest

from services.bus.kafka.broker_health import backoff_s, health_of_node, wait_for_broker
from services.bus.kafka.clients import (
    REQUEST_TIMEOUT_MS,
    bounded_close,
    common_options,
    find_moved_brokers,
    report_health,
)
from services.bus.kafka.connections import connect
from services.bus.records import Partition
from services.bus.settings import BusSettings
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("bus")

_LATEST: Final = -1
_EARLIEST: Final = -2
_NONE: Final = -1


class _Client(AIOKafkaClient):  # type: ignore[misc]
    # When this member leads its group, aiokafka calls ``set_topics`` with the topics of the group only. From the next
    # update on, it would know no leader of any other topic. The topics in ``kept`` stay known. No topics means all.
    def __init__(self, kept: AbstractSet[str], **options: Any) -> None:
        super().__init__(**options)
        self._kept = kept

    def set_topics(self, topics: Iterable[str]) -> Any:
        return super().set_topics({*topics, *self._kept} if topics else topics)


class Cluster:
    """A Kafka client for all requests except those that read or write records. It survives restarts of brokers.

    Args:
        name: Client id, shown in the broker's logs.
        timeout_ms: Time in milliseconds after which a request without a response counts as failed.

    Attributes:
        leaders_version: A number that changes whenever a partition may have got another leader.
    """

    def __init__(self, settings: BusSettings, name: str, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self._settings = settings
        self._name = name
        self._timeout_ms = timeout_ms
        self._leaders: dict[Partition, int] = {}
        self._kept: set[str] = set()
        self.leaders_version = 0
        self.client: Any = None

    async def open(self) -> None:
        """Connect. Wait while the broker is unreachable."""
        self._forget_leaders()
        for attempt in itertools.count():
            await wait_for_broker(self._settings)
            options = common_options(self._settings, self._name)
            self.client = _Client(self._kept, **options, request_timeout_ms=self._timeout_ms)
            report_health(self.client, self._settings)
            find_moved_brokers(self.client, self._settings)
            self.client.cluster.add_listener(lambda _: self._forget_leaders())
            try:
                await self.client.bootstrap()
            except KafkaError:
                await self.close()
                await asyncio.sleep(backoff_s(attempt))
            else:
                return

    async def close(self) -> None:
        await bounded_close(self.client.close())

    async def connect(self, node: int) -> Any:
        """Open a separate connection to a broker of the cluster. The caller must close it."""
        broker = self.client.cluster.broker_metadata(node)
        if broker is None:
            raise LeaderNotAvailableError(f"broker {node} is not in the cluster's metadata")
        host, port = address = broker.host, broker.port
        health = health_of_node(self._settings, node, address)
        try:
            conn = await connect(self._settings, host, port, name=self._name, timeout_ms=self._timeout_ms)
        except (OSError, KafkaError, TimeoutError) as error:
            health.mark_unreachable(error)
            raise
        health.mark_reachable()
        return conn

    async def wait_for_topics(self, topics: Iterable[str]) -> None:
        """Wait until the cluster has all of these topics, and keep their metadata. Log each missing topic once.

        Raises:
            UserError: The broker does not let this user read a topic.
        """
        for topic in topics:
            self._kept.add(topic)
            attempt = 0
            while self.client.cluster.partitions_for_topic(topic) is None:
                answered = await self.client.add_topic(topic) and await self.client.force_metadata_update()
                if topic in self.client.cluster.unauthorized_topics:
                    raise UserError(f"the broker does not let this user read topic {topic}")
                if self.client.cluster.partitions_for_topic(topic) is not None:
                    break
                if answered and attempt == 3:
                    _log.warning("topic %s does not exist yet; waiting", topic)
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1

    def has(self, partition: Partition) -> bool:
        topic, number = partition
        return number in (self.client.cluster.partitions_for_topic(topic) or ())

    def leader(self, partition: Partition) -> int | None:
        known = self._leaders.get(partition)
        if known is not None:
            return known
        node = self.client.cluster.leader_for_partition(TopicPartition(*partition))
        if node is None or node < 0:
            return None
        self._leaders[partition] = node
        return int(node)

    def _forget_leaders(self) -> None:
        self._leaders.clear()
        self.leaders_version += 1

    async def refresh(self) -> bool:
        """Request the cluster's metadata. Return whether a broker has answered."""
        return bool(await self.client.force_metadata_update())

    async def wait_for_answer(self) -> None:
        """Wait until a broker answers. Retry without limit."""
        for attempt in itertools.count():
            if await self.refresh():
                return
            await asyncio.sleep(backoff_s(attempt))

    async def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._offsets(dict.fromkeys(partitions, _EARLIEST))

    async def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return await self._offsets(dict.fromkeys(partitions, _LATEST))

    async def offsets_for_time(self, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
        """Return, by partition, the offset of the first record with a timestamp of ``time_ms`` or later.

        If there is no such record, return the end offset.
        """
        partitions = tuple(partitions)
        # Request the ends first. Then a record that arrives between the requests is found by its time or is after them.
        ends = await self.end_offsets(partitions)
        found = await self._offsets(dict.fromkeys(partitions, max(time_ms, 0)))
        return {partition: ends[partition] if at == _NONE else at for partition, at in found.items()}

    async def _offsets(self, times: Mapping[Partition, int]) -> dict[Partition, int]:
        attempt = 0
        while True:
            try:
                return await self._ask(times)
            except TopicAuthorizationFailedError as error:
                raise UserError(f"the broker does not let this user read: {error}") from None
            except KafkaError as error:
                if attempt == 5:
                    _log.warning("offsets of %s cannot be read yet: %r", sorted({topic for topic, _ in times}), error)
                await asyncio.sleep(backoff_s(attempt))
                await self.refresh()
                attempt += 1

    async def _ask(self, times: Mapping[Partition, int]) -> dict[Partition, int]:
        by_node: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for (topic, number), time in times.items():
            node = self.leader((topic, number))
            if node is None:
                raise LeaderNotAvailableError(f"{topic}[{number}] has no leader")
            by_node.setdefault(node, {}).setdefault(topic, []).append((number, time))
        answers = await asyncio.gather(
            *(self.client.send(node, OffsetRequest(-1, 0, list(asked.items()))) for node, asked in by_node.items())
        )
        found: dict[Partition, int] = {}
        for answer in answers:
            for topic, parts in answer.topics:
                for number, code, _time, offset in parts:
                    if code:
                        raise for_code(code)(f"{topic}[{number}]")
                    found[topic, number] = offset
        return found
