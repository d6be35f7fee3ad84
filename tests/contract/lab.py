"""Topics and Kafka clients for one test. The clients are closed after the test."""

import asyncio
import contextlib
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from tests.contract import wire
from tests.support.waiting import until

# Maximum wait for whatever must happen. Tests do not check that it happens faster.
PATIENCE_S = 30.0


class KafkaClients:
    """Clients of one broker, for one test."""

    def __init__(
        self, address: str, resources: contextlib.AsyncExitStack, broker_log: Callable[[], str] = lambda: ""
    ) -> None:
        self.address = address
        self._broker_log = broker_log
        self._resources = resources
        self._admin: AIOKafkaAdminClient | None = None

    async def admin(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            self._admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await self._admin.start()
            self._resources.push_async_callback(self._admin.close)
        return self._admin

    async def until_coordinated(self) -> None:
        """Wait until the coordinator of consumer groups is ready.

        When a client first asks for the coordinator, Apache Kafka creates and loads the coordinator's topic. Until the
        topic is loaded, Apache Kafka answers an ``OffsetFetchRequest`` with an error for the whole group. aiokafka 0.14
        takes this error for "nothing committed".
        """
        connection = await self._first_connection()

        async def is_ready() -> bool:
            if (await connection.send(FindCoordinatorRequest("any", 0))).error_code != wire.NONE:
                return False
            answer = await connection.send(OffsetFetchRequest("any", [("any", [0])]))
            return bool(answer.error_code == wire.NONE)

        await until(is_ready, "the group coordinator is ready")

    async def _first_connection(self) -> AIOKafkaConnection:
        """Return a new connection. If the broker refuses or closes the connection, issue a warning and connect again.

        Apache Kafka once closed new connections for about a second on a busy machine. The cause is unknown.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await self.connection()
            except KafkaConnectionError as error:
                warnings.warn(f"a new connection: {error}; the broker's log:\n{self._broker_log()}", stacklevel=2)
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(0.1)

    async def topic(self, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic, wait until it can be used, and return its name.

        Unless `configs` say otherwise, its records never expire, whatever their timestamps are.
        """
        name = unique("topic")
        await self.create_topic(name, partitions, {"retention.ms": "-1", **(configs or {})})
        return name

    async def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        admin = await self.admin()
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, topic_configs=dict(configs or {}))
        for _, code, *message in (await admin.create_topics([new])).topic_errors:
            if code:
                raise for_code(code)(message)

        # Apache Kafka tells of a leader a moment before that leader serves.
        connection = await self.connection()

        async def is_served() -> bool:
            ends = [await wire.list_offset(connection, name, wire.LATEST, partition=p) for p in range(partitions)]
            return all(end == (wire.NONE, 0) for end in ends)

        await until(is_served, "the new topic is served")

    async def topic_config(self, topic: str, name: str) -> str:
        """Return the value of one setting of a topic."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})
        (response,) = await (await self.admin()).describe_configs([resource])
        ((error, _, _, _, entries),) = response.resources
        if error:
            raise for_code(error)(f"{topic} {name}")
        ((_, value, *_),) = entries
        return value

    async def producer(self, **settings: Any) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            **{"bootstrap_servers": self.address, "acks": "all", "enable_idempotence": True, **settings}
        )
        await producer.start()
        self._resources.push_async_callback(producer.stop)
        return producer

    async def consumer(self, *topics: str, **settings: Any) -> AIOKafkaConsumer:
        """Return a started consumer, which is in a group if `group_id` is given.

        Unless `settings` say otherwise, the consumer begins at the first record and does not commit automatically.
        """
        defaults = {
            "bootstrap_servers": self.address,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 200,
            "session_timeout_ms": 30_000,  # no member is lost because a busy machine stops the test for seconds
            "metadata_max_age_ms": 2000,
        }
        consumer = AIOKafkaConsumer(*topics, **{**defaults, **settings})
        await consumer.start()
        self._resources.push_async_callback(consumer.stop)
        return consumer

    async def reader(self, topic: str, partitions: Iterable[int] = (0,), **settings: Any) -> AIOKafkaConsumer:
        """Return a consumer to which these partitions are assigned manually."""
        consumer = await self.consumer(**settings)
        consumer.assign([TopicPartition(topic, partition) for partition in partitions])
        return consumer

    async def connection(self) -> AIOKafkaConnection:
        """Return a connection for single protocol requests. It already knows the API versions of the broker."""
        host, port = self.address.split(":")
        connection = await create_conn(host, int(port), request_timeout_ms=int(PATIENCE_S * 1000))
        self._resources.callback(connection.close)
        return connection

    async def put(self, topic: str, values: Iterable[bytes], partition: int = 0, **settings: Any) -> None:
        """Produce the values to one partition, in this order, and wait until all of them are acknowledged."""
        producer = await self.producer(**settings)
        await asyncio.gather(*[await producer.send(topic, value, partition=partition) for value in values])

    async def put_batch(
        self, topic: str, timestamps: Sequence[int], *, values: Sequence[bytes] | None = None, **settings: Any
    ) -> int:
        """Produce one batch to partition 0, with one record per timestamp (ms), and return its first offset."""
        producer = await self.producer(max_batch_size=1_000_000, **settings)
        batch = producer.create_batch()
        for index, timestamp in enumerate(timestamps):
            value = values[index] if values else str(timestamp).encode()
            assert batch.append(timestamp=timestamp, key=None, value=value) is not None
        batch.close()
        acknowledged = await (await producer.send_batch(batch, topic, partition=0))
        return acknowledged.offset


def unique(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:12]}"


async def read_records(consumer: AIOKafkaConsumer, count: int, within_s: float = PATIENCE_S) -> list[ConsumerRecord]:
    """Return the next `count` records. Fail if they do not arrive within `within_s` seconds."""
    records: list[ConsumerRecord] = []
    try:
        async with asyncio.timeout(within_s):
            while len(records) < count:
                records.append(await consumer.getone())
    except TimeoutError:
        raise AssertionError(f"{len(records)} of {count} records came within {within_s} s") from None
    return records


async def nothing_comes(consumer: AIOKafkaConsumer, for_s: float = 0.3) -> bool:
    """Return whether no record arrives within `for_s` seconds."""
    return not any((await consumer.getmany(timeout_ms=int(for_s * 1000))).values())


@contextlib.asynccontextmanager
async def open_clients(address: str, broker_log: Callable[[], str] = lambda: "") -> AsyncIterator[KafkaClients]:
    async with contextlib.AsyncExitStack() as resources:
        lab = KafkaClients(address, resources, broker_log)
        await lab.until_coordinated()
        yield lab
