"""What a reader asks the cluster: who leads a partition, and which offset belongs to a moment."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, LeaderNotAvailableError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.offset import OffsetRequest

from services.bus.connect import connect
from services.bus.contact import backoff_s, contact_with, wait_for_broker
from services.bus.fetch_wire import Partition
from services.bus.kafka import REQUEST_TIMEOUT_MS, bounded, make_client
from services.bus.settings import BusSettings
from services.runtime.errors import UserError
from services.runtime.logging import logger

_log = logger("bus")

_LATEST: Final = -1
_EARLIEST: Final = -2
_NONE: Final = -1


class Cluster:
    """A client for everything but the records themselves; it survives broker restarts.

    Args:
        settings: Where and how.
        name: Client id, shown in the broker's logs.
        timeout_ms: A request without answer for so long is taken for lost.
    """

    def __init__(self, settings: BusSettings, name: str, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        self._settings = settings
        self._name = name
        self._timeout_ms = timeout_ms
        self.client: Any = None

    async def open(self) -> None:
        """Connects; waits for the broker as long as it is away.

        Raises:
            UserError: The broker refuses the credentials.
        """
        attempt = 0
        while True:
            await wait_for_broker(self._settings)
            self.client = make_client(self._settings, self._name, timeout_ms=self._timeout_ms)
            try:
                await self.client.bootstrap()
            except KafkaError:
                await self.close()
                await asyncio.sleep(backoff_s(attempt))
                attempt += 1
            else:
                return

    async def close(self) -> None:
        """Closes all connections but those ``connect`` gave."""
        await bounded(self.client.close())

    async def connect(self, node: int) -> Any:
        """A further connection to a broker of the cluster.

        Raises:
            OSError, KafkaError, TimeoutError: As it failed.
        """
        broker = self.client.cluster.broker_metadata(node)
        if broker is None:
            raise LeaderNotAvailableError(f"broker {node} is not in the cluster's metadata")
        host, port, contact = broker.host, broker.port, contact_with(broker.host, broker.port)
        try:
            conn = await connect(self._settings, host, port, name=self._name, timeout_ms=self._timeout_ms)
        except (OSError, KafkaError, TimeoutError) as error:
            contact.lost(error)
            raise
        contact.found()
        return conn

    async def know(self, topics: Iterable[str]) -> None:
        """Returns when the cluster has all of these topics; waits and says so once.

        Raises:
            UserError: The broker does not let us see one.
        """
        for topic in topics:
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
        """Whether a known topic has this partition."""
        topic, number = partition
        return number in (self.client.cluster.partitions_for_topic(topic) or ())

    def leader(self, partition: Partition) -> int | None:
        """The broker that leads a partition; None while none is known."""
        node = self.client.cluster.leader_for_partition(TopicPartition(*partition))
        return None if node is None or node < 0 else int(node)

    async def refresh(self) -> None:
        """Asks for the leaders again."""
        await self.client.force_metadata_update()

    async def begins(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The oldest offset of each."""
        return await self._offsets(dict.fromkeys(partitions, _EARLIEST))

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset the next record of each will get."""
        return await self._offsets(dict.fromkeys(partitions, _LATEST))

    async def at_time(self, partitions: Iterable[Partition], time_ms: int) -> dict[Partition, int]:
        """The first record of each whose time is not before ``time_ms``; the end where there is none."""
        partitions = tuple(partitions)
        # The end is asked for first: a record that arrives in between is then found by its time or lies behind the end.
        ends = await self.ends(partitions)
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
                    _log.warning("offsets of %s cannot be had yet: %r", sorted({topic for topic, _ in times}), error)
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
