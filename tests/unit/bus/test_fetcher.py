"""Test which broker a partition is fetched from, in a simulated cluster whose leaders a test changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest_v7, FetchResponse_v7
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from services.bus import InFlightLimit
from services.bus.read.fetch_wire import NO_SESSION, FetchCall
from services.bus.read.fetcher import Events, Fetcher, HandOver, newest_records
from services.bus.read.record_decoder import RawDecoder, unpack
from services.bus.records import Partition

MOVED, STAYING, ELSEWHERE = ("t", 0), ("t", 1), ("t", 2)
POLL_S = 0.001


class Connection:
    """A simulated connection to one broker. It notes which partitions are fetched."""

    def __init__(self, asked: set[Partition], logs: dict[Partition, bytes]) -> None:
        self._asked = asked
        self._logs = logs

    def connected(self) -> bool:
        return True

    async def send(self, call: FetchCall) -> bytes:
        request = FetchRequest_v7.decode(BytesIO(call.encode()))
        asked = {(topic, number): offset for topic, parts in request.topics for number, offset, *_ in parts}
        self._asked.update(asked)
        await asyncio.sleep(POLL_S)
        parts = [(number, 0, 0, 0, 0, [], self._new((topic, number), at)) for (topic, number), at in asked.items()]
        return FetchResponse_v7(0, 0, NO_SESSION, [("t", parts)]).encode()  # type: ignore[no-any-return]

    def _new(self, partition: Partition, offset: int) -> bytes:
        log = self._logs.get(partition, b"")
        return log if any(True for _ in unpack(log, offset)) else b""

    def close(self) -> None:
        pass


class SmallResponses(Connection):
    """A simulated connection. Each response has room for the records of one partition only."""

    _full = False

    async def send(self, call: FetchCall) -> bytes:
        self._full = False
        return await super().send(call)

    def _new(self, partition: Partition, offset: int) -> bytes:
        records = b"" if self._full else super()._new(partition, offset)
        self._full = self._full or bool(records)
        return records


class Brokers:
    """A simulated ``Cluster`` whose leaders a test can change.

    For each node, ``asked`` has the partitions that were fetched from that node.
    """

    def __init__(self, leaders: dict[Partition, int | None], connection: type[Connection] = Connection) -> None:
        self.leaders = leaders
        self._connection = connection
        self.leaders_version = 0
        self.asked: dict[int, set[Partition]] = {}
        self.logs: dict[Partition, bytes] = {}

    def leader(self, partition: Partition) -> int | None:
        return self.leaders[partition]

    def moves(self, partition: Partition, node: int | None) -> None:
        """Make ``node`` the partition's leader. If ``node`` is None, the partition has no leader."""
        self.leaders[partition] = node
        self.leaders_version += 1

    async def connect(self, node: int) -> Connection:
        return self._connection(self.asked.setdefault(node, set()), self.logs)

    async def refresh(self) -> None:
        self.leaders = {partition: 2 if node is None else node for partition, node in self.leaders.items()}
        self.leaders_version += 1


@asynccontextmanager
async def fetching(brokers: Any, limit: InFlightLimit, hand_over: HandOver = lambda *_: None) -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(brokers, decoder=RawDecoder(), hand_over=hand_over, in_flight_limit=limit)
    fetcher.start_at(dict.fromkeys(brokers.leaders, 0))
    task = asyncio.create_task(fetcher.run())
    try:
        yield fetcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def log_of(count: int) -> bytes:
    batch = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**20)
    for offset in range(count):
        batch.append(offset, 1, b"k", b"v", [])
    return bytes(batch.build())


async def reaches(brokers: Brokers, node: int) -> None:
    async with asyncio.timeout(5):
        while MOVED not in brokers.asked.get(node, ()):  # noqa: ASYNC110 - a few times only
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("node", [2, None])
async def test_a_leader_that_changes_while_reading_pauses_is_followed(node: int | None) -> None:
    """If a partition's leader changes while the fetcher pauses, the fetcher later reads from the new leader.

    The fetcher pauses while no slot of the ``InFlightLimit`` is free. If ``node`` is None, the partition has no leader
    until the fetcher calls ``refresh``.
    """
    brokers, limit = Brokers({MOVED: 1, STAYING: 1}), InFlightLimit(1)
    async with fetching(brokers, limit):
        await reaches(brokers, 1)
        limit.acquire()
        await asyncio.sleep(0.1)
        brokers.moves(MOVED, node)
        limit.release()
        await reaches(brokers, 2)


async def test_records_are_handed_over_once_while_the_leader_changes() -> None:
    count, offsets = 2_000, list[int]()
    brokers = Brokers({MOVED: 1, ELSEWHERE: 2})
    brokers.logs[MOVED] = log_of(count)

    def hand_over(records: Events, _: object) -> None:
        offsets.extend(record.offset for record in records)
        if offsets[-1] == 0:
            brokers.moves(MOVED, 2)

    async with fetching(brokers, InFlightLimit(1), hand_over) as fetcher:  # the limit: one record in each call
        async with asyncio.timeout(30):
            while fetcher.position(MOVED) != count:  # noqa: ASYNC110 - a few times only
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
    assert MOVED in brokers.asked[2]
    assert offsets == list(range(count))


async def test_a_newest_record_without_room_in_a_response_is_asked_again() -> None:
    brokers: Any = Brokers({MOVED: 1, STAYING: 1, ELSEWHERE: 1}, SmallResponses)
    brokers.logs |= {MOVED: log_of(3), STAYING: log_of(3)}
    async with asyncio.timeout(5):
        found = await newest_records(brokers, {MOVED: 3, STAYING: 3, ELSEWHERE: 3})  # the third has nothing to give
    assert {partition: record.offset for partition, record in found.items()} == {MOVED: 2, STAYING: 2}
    assert brokers.leaders_version == 0, "there was no pause, and no refresh"
