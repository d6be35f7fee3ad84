"""Test fetch sessions (KIP-227): requests name only partitions that changed, and responses contain only new data."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest
from aiokafka.conn import AIOKafkaConnection

from services.bus.read.fetch_session import ClientFetchSession, ask_once
from services.bus.read.fetch_wire import FetchAsk, FetchCall, PartitionData, decode, encode
from services.bus.read.record_decoder import unpack
from services.bus.records import Partition
from tests.contract.lab import KafkaClients
from tests.support.waiting import until

SESSION_UNKNOWN, WRONG_EPOCH = 70, 71
OFFSET_OUT_OF_RANGE = 1
WAIT_MS = 28_000


async def _fetch(
    connection: AIOKafkaConnection, ask: FetchAsk, *, wait_ms: int = 0, most_bytes: int = 1 << 20
) -> tuple[int, int, list[PartitionData]]:
    """Send a fetch request, and return the error code, the session's id and the partitions of the response."""
    body = encode(ask, wait_ms=wait_ms, most_bytes=most_bytes, most_bytes_each=most_bytes)
    answer = decode(await connection.send(FetchCall(body)))
    return answer.error, answer.session_id, list(answer.parts)


def _values(part: PartitionData, offset: int = 0) -> list[bytes]:
    return [record.value for _, record in unpack(part.records, offset) if record is not None]


def _at(topic: str, *offsets: int) -> dict[Partition, int]:
    return {(topic, number): offset for number, offset in enumerate(offsets)}


async def _open(connection: AIOKafkaConnection, offsets: Mapping[Partition, int]) -> int:
    error, session_id, parts = await _fetch(connection, FetchAsk(0, 0, offsets))
    assert error == 0
    assert session_id > 0
    assert [(part.topic, part.partition) for part in parts] == list(offsets)
    return session_id


async def test_only_what_is_new_is_answered(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=3)
    connection = await lab.connection()
    session = await _open(connection, _at(topic, 0, 0, 0))

    await lab.put(topic, [b"one"], partition=1)
    _, _, (part,) = await _fetch(connection, FetchAsk(session, 1, {}), wait_ms=WAIT_MS)
    assert (part.partition, part.end, _values(part)) == (1, 1, [b"one"])

    # The broker has the offset that it was told: the record is there until the reader moves on.
    _, _, (part,) = await _fetch(connection, FetchAsk(session, 2, {}), wait_ms=WAIT_MS)
    assert _values(part) == [b"one"]
    assert await _fetch(connection, FetchAsk(session, 3, {(topic, 1): 1})) == (0, session, [])


async def test_a_waiting_fetch_of_a_session_is_woken(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=3)
    connection = await lab.connection()
    session = await _open(connection, _at(topic, 0, 0, 0))
    waiting = asyncio.create_task(_fetch(connection, FetchAsk(session, 1, {}), wait_ms=WAIT_MS))
    await asyncio.sleep(0.3)
    assert not waiting.done()

    await lab.put(topic, [b"news"], partition=2)

    async with asyncio.timeout(WAIT_MS / 2_000):
        _, _, (part,) = await waiting
    assert (part.partition, _values(part)) == (2, [b"news"])


async def test_partitions_join_and_leave_a_session(lab: KafkaClients) -> None:
    topic, other = await lab.topic(partitions=2), await lab.topic()
    connection = await lab.connection()
    session = await _open(connection, _at(topic, 0, 0))

    _, _, (part,) = await _fetch(connection, FetchAsk(session, 1, {(other, 0): 0}, [(topic, 0)]))
    assert (part.topic, part.partition, part.end) == (other, 0, 0)

    await lab.put(topic, [b"left"], partition=0)
    await lab.put(topic, [b"stays"], partition=1)
    await lab.put(other, [b"joined"])
    _, _, parts = await _fetch(connection, FetchAsk(session, 2, {}))
    assert {(part.topic, part.partition): _values(part) for part in parts} == {
        (topic, 1): [b"stays"],
        (other, 0): [b"joined"],
    }


async def test_an_error_is_repeated_until_the_offset_is_right(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    session = await _open(connection, _at(topic, 0))

    for epoch in (1, 2):
        _, _, (part,) = await _fetch(connection, FetchAsk(session, epoch, {(topic, 0): 99}), wait_ms=WAIT_MS)
        assert part.error == OFFSET_OUT_OF_RANGE
    _, _, (part,) = await _fetch(connection, FetchAsk(session, 3, {(topic, 0): 0}))
    assert (part.error, part.end) == (0, 0)


async def test_a_session_survives_its_connection(lab: KafkaClients) -> None:
    topic = await lab.topic()
    first = await lab.connection()
    session = await _open(first, _at(topic, 0))
    first.close()
    await lab.put(topic, [b"later"])

    _, _, (part,) = await _fetch(await lab.connection(), FetchAsk(session, 1, {}), wait_ms=WAIT_MS)

    assert _values(part) == [b"later"]


async def test_wrong_epochs_and_unknown_sessions_are_refused(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    session = await _open(connection, _at(topic, 0))

    assert (await _fetch(connection, FetchAsk(session, 2, {})))[0] == WRONG_EPOCH
    assert (await _fetch(connection, FetchAsk(session ^ 1, 1, {})))[0] == SESSION_UNKNOWN
    assert (await _fetch(connection, FetchAsk(session, 1, {})))[0] == 0


@pytest.mark.parametrize("epoch", [0, -1], ids=["for a new one", "for none"])
async def test_a_session_is_closed(lab: KafkaClients, epoch: int) -> None:
    topic = await lab.topic()
    connection = await lab.connection()
    session = await _open(connection, _at(topic, 0))

    error, following, (part,) = await _fetch(connection, FetchAsk(session, epoch, _at(topic, 0)))

    assert (error, part.error) == (0, 0)
    assert following != session
    assert (following > 0) == (epoch == 0)
    assert (await _fetch(connection, FetchAsk(session, 1, {})))[0] == SESSION_UNKNOWN


async def test_one_fetch_needs_no_session(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection = await lab.connection()

    error, session, (part,) = await _fetch(connection, ask_once(_at(topic, 0)))

    assert (error, session, part.end) == (0, 0, 0)


async def test_a_full_partition_does_not_starve_the_others(lab: KafkaClients) -> None:
    topic = await lab.topic(partitions=2)
    connection = await lab.connection()
    await lab.put(topic, [bytes(600)] * 3, partition=0)
    await lab.put(topic, [b"small"], partition=1)
    session, offsets, seen = ClientFetchSession(), {(topic, 0): 0, (topic, 1): 0}, []
    for _ in range(8):
        _, session_id, parts = await _fetch(connection, session.ask(offsets), most_bytes=700)
        session.answered(session_id)
        for part in parts:
            partition = (part.topic, part.partition)
            found = _values(part, offsets[partition])
            seen += [part.partition] * len(found)
            offsets[partition] += len(found)
            session.read(part, offsets[partition])
    assert sorted(seen) == [0, 0, 0, 1]
    assert not session.behind


async def test_a_topic_made_again_is_found(lab: KafkaClients) -> None:
    topic = await lab.topic()
    connection, admin = await lab.connection(), await lab.admin()
    session = ClientFetchSession()

    async def told(wanted: int) -> bool:
        """Fetch once, and return whether the partition's error code is `wanted`."""
        error, session_id, parts = await _fetch(connection, session.ask({(topic, 0): 0}))
        if error:
            session.reset()
            return False
        session.answered(session_id)
        return [part.error for part in parts] == [wanted]

    await until(lambda: told(0), "the topic is read")
    await admin.delete_topics([topic])
    await until(lambda: told(3), "the topic is gone")
    await lab.create_topic(topic)
    await until(lambda: told(0), "the topic is there again")


async def test_any_reading_with_a_session_reads_everything_once(lab: KafkaClients) -> None:
    """The reader misses no record and repeats one only after a seek, even if partitions pause or responses are lost."""
    topic = await lab.topic(partitions=4)
    connection, producer, chance = await lab.connection(), await lab.producer(), random.Random(7)
    session, offsets = ClientFetchSession(), dict.fromkeys([(topic, number) for number in range(4)], 0)
    written: dict[int, list[bytes]] = {number: [] for number in range(4)}
    read: dict[int, list[bytes]] = {number: [] for number in range(4)}
    paused: set[Partition] = set()

    async def step(most_bytes: int) -> Sequence[PartitionData]:
        asked = {partition: offset for partition, offset in offsets.items() if partition not in paused}
        error, session_id, parts = await _fetch(connection, session.ask(asked), most_bytes=most_bytes)
        if error or chance.random() < 0.1:  # or the answer is lost on its way
            session.reset()
            return []
        session.answered(session_id)
        for part in parts:
            partition = (part.topic, part.partition)
            found = _values(part, offsets[partition])
            read[part.partition] += found
            offsets[partition] += len(found)
            session.read(part, offsets[partition])
        return parts

    for turn in range(300):
        number = chance.randrange(4)
        match chance.randrange(6):
            case 0 | 1:
                values = [f"{turn}-{at}".encode() for at in range(chance.randrange(1, 4))]
                await asyncio.gather(*[await producer.send(topic, value, partition=number) for value in values])
                written[number] += values
            case 2:
                paused ^= {(topic, number)}
                if len(paused) == 4:
                    paused.clear()
            case 3:
                back = chance.randrange(len(read[number]) + 1)
                offsets[topic, number] = back
                del read[number][back:]
            case _:
                await step(chance.choice([120, 1 << 20]))
    paused.clear()
    while any(offsets[topic, number] < len(written[number]) for number in range(4)):
        await step(1 << 20)
    while not await step(1 << 20) and session.behind:
        pass

    assert read == written
    assert not session.behind
