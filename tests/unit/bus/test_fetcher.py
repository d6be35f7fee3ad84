"""Which broker a partition is fetched from, by a cluster that a test moves about."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest_v7, FetchResponse_v7

from services.bus import InFlightLimit
from services.bus.read.fetch_wire import FetchCall
from services.bus.read.fetcher import Fetcher
from services.bus.read.record_decoder import RecordDecoder
from services.bus.records import Partition

MOVED, STAYING = ("t", 0), ("t", 1)


class Connection:
    """A broker that has nothing new, and notes what it is asked for."""

    def __init__(self, asked: set[Partition]) -> None:
        self._asked = asked

    def connected(self) -> bool:
        return True

    async def send(self, call: FetchCall) -> bytes:
        request = FetchRequest_v7.decode(BytesIO(call.encode()))
        self._asked |= {(topic, number) for topic, parts in request.topics for number, *_ in parts}
        await asyncio.sleep(0.01)
        return FetchResponse_v7(throttle_time_ms=0, error_code=0, session_id=0, topics=[]).encode()  # type: ignore[no-any-return]

    def close(self) -> None:
        pass


class Brokers:
    """Stands in for a ``Cluster``."""

    def __init__(self, leaders: dict[Partition, int | None]) -> None:
        self.leaders = leaders
        self.leaders_version = 0
        self.asked: dict[int, set[Partition]] = {}

    def leader(self, partition: Partition) -> int | None:
        return self.leaders[partition]

    def moves(self, partition: Partition, node: int | None) -> None:
        """Some other request refreshed the metadata."""
        self.leaders[partition] = node
        self.leaders_version += 1

    async def connect(self, node: int) -> Connection:
        return Connection(self.asked.setdefault(node, set()))

    async def refresh(self) -> None:
        self.leaders = {partition: 2 if node is None else node for partition, node in self.leaders.items()}
        self.leaders_version += 1


@asynccontextmanager
async def fetching(brokers: Any, limit: InFlightLimit) -> AsyncIterator[None]:
    fetcher = Fetcher(brokers, decoder=RecordDecoder(), hand_over=lambda *_: None, in_flight_limit=limit)
    fetcher.start_at({MOVED: 0, STAYING: 0})
    task = asyncio.create_task(fetcher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def reaches(brokers: Brokers, node: int) -> None:
    async with asyncio.timeout(5):
        while MOVED not in brokers.asked.get(node, ()):  # noqa: ASYNC110 - a few times only
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("node", [2, None])
async def test_a_partition_whose_leader_changes_while_reading_pauses_is_read_from_the_new_one(node: int | None) -> None:
    """None: it has no leader for a while."""
    brokers, limit = Brokers({MOVED: 1, STAYING: 1}), InFlightLimit(1)
    async with fetching(brokers, limit):
        await reaches(brokers, 1)
        limit.acquire()
        await asyncio.sleep(0.1)
        brokers.moves(MOVED, node)
        limit.release()
        await reaches(brokers, 2)
