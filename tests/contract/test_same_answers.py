"""Test that Apache Kafka and the embedded broker give the same answers to the same random requests.

Only the texts of error messages may differ.
"""

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol import admin, commit, group, metadata
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from tests.contract import wire
from tests.contract.conftest import running_broker
from tests.contract.lab import KafkaClients, open_clients, unique
from tests.support.brokers import Broker

PARTITIONS = 2
PRODUCERS = 3
REQUESTS = 250
TOPIC_RESOURCE = 2

# Sends a request with chosen arguments. It is called for each broker, with the producer ids that this broker has given.
Ask = Callable[[AIOKafkaConnection, list[int]], Awaitable[Any]]


@dataclass
class History:
    """What the brokers have acknowledged so far.

    The test needs it to choose sequence numbers and offsets that are valid or almost valid.
    """

    topic: str
    group: str
    now_ms: int
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    sequences: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


@pytest.fixture(scope="module", params=[pytest.param("both", marks=pytest.mark.kafka)])
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Broker]]:
    kafka = running_broker(Broker("kafka", tmp_path_factory.mktemp("kafka") / "data"))
    embedded = running_broker(Broker("embedded", tmp_path_factory.mktemp("embedded") / "data"))
    yield [next(kafka), next(embedded)]
    for broker in (kafka, embedded):
        next(broker, None)


@pytest.fixture
async def labs(both: list[Broker]) -> AsyncIterator[list[KafkaClients]]:
    async with open_clients(both[0].address) as kafka, open_clients(both[1].address) as embedded:
        yield [kafka, embedded]


@pytest.mark.parametrize("seed", range(6))
async def test_the_same_requests_have_the_same_answers(labs: list[KafkaClients], seed: int) -> None:
    chance = random.Random(seed)
    history = History(unique("topic"), unique("group"), int(time.time() * 1000))
    for lab in labs:
        await lab.create_topic(history.topic, PARTITIONS, {"retention.ms": "-1"})
    connections = [await lab.connection() for lab in labs]
    ids = [[(await wire.producer_id(c))[0] for _ in range(PRODUCERS)] for c in connections]

    for number in range(REQUESTS):
        choose = chance.choices(list(CHOICES), weights=list(CHOICES.values()))[0]
        what, ask, learn = choose(chance, history)
        kafka, embedded = [await ask(c, own) for c, own in zip(connections, ids, strict=True)]
        assert embedded == kafka, f"request {number} of seed {seed}: {what}"
        learn(kafka)


Choice = tuple[str, Ask, Callable[[Any], None]]


def _nothing_to_learn(_: Any) -> None:
    pass


def _produce(chance: random.Random, history: History) -> Choice:
    producer, partition = chance.randrange(PRODUCERS), chance.choice([0, 0, 0, 1, 1, 1, 7])
    epoch, sequence = history.sequences.get((producer, partition), (0, 0))
    used_epoch, used = chance.choice(
        [(epoch, sequence)] * 6
        + [(epoch, max(0, sequence - chance.randrange(1, 12)))] * 3  # a retry, or nearly one
        + [(epoch, sequence + chance.randrange(1, 5)), (epoch + 1, 0), (epoch + 1, 3), (max(0, epoch - 1), sequence)]
    )
    times = [history.now_ms - chance.randrange(100_000) for _ in range(chance.randrange(1, 6))]
    codec, acks = chance.choice([0, 0, 1]), chance.choice([-1, -1, 1])

    async def ask(connection: AIOKafkaConnection, own: list[int]) -> Any:
        builder = DefaultRecordBatchBuilder(2, codec, 0, own[producer], used_epoch, used, 1 << 20)
        for index, at in enumerate(times):
            builder.append(index, timestamp=at, key=None, value=f"{producer}:{used + index}".encode(), headers=[])
        records = bytes(builder.build())
        return await wire.produce_timed(connection, history.topic, records, partition=partition, acks=acks)

    def learn(answer: tuple[int, int, int]) -> None:
        error, offset, _ = answer
        if error == wire.NONE and offset >= history.ends[partition]:
            history.ends[partition] = offset + len(times)
            history.sequences[producer, partition] = (used_epoch, used + len(times))

    what = f"produce {len(times)} to {partition}, {producer=} {used_epoch=} {used=}, expected {epoch} {sequence}"
    return what, ask, learn


def _list_offset(chance: random.Random, history: History) -> Choice:
    partition = chance.choice([0, 1, 7])
    at = chance.choice([wire.LATEST, wire.EARLIEST, 0, history.now_ms, history.now_ms - chance.randrange(110_000)])

    async def ask(connection: AIOKafkaConnection, _: list[int]) -> Any:
        return await wire.list_offset(connection, history.topic, at, partition=partition)

    return f"list offset at {at} of {partition}", ask, _nothing_to_learn


def _fetch(chance: random.Random, history: History) -> Choice:
    partition = chance.randrange(PARTITIONS)
    end = history.ends[partition]
    offset = chance.choice([0, end, end + 1, chance.randrange(end + 1), max(0, end - 3)])
    most = chance.choice([1, 100, 500, 100_000])

    async def ask(connection: AIOKafkaConnection, _: list[int]) -> Any:
        error, high_watermark, data = await wire.fetch(
            connection, history.topic, offset, partition=partition, max_bytes=most
        )
        batches, records = [], MemoryRecords(bytes(data))
        while (batch := records.next_batch()) is not None:
            batches.append([(record.offset, record.timestamp, record.value) for record in batch])
        return error, high_watermark, batches

    return f"fetch {partition} from {offset}, {most} bytes", ask, _nothing_to_learn


def _commit(chance: random.Random, history: History) -> Choice:
    offset, note = chance.choice([0, 5, 10**9]), chance.choice(["", "x", "y" * 4096, "z" * 4097])
    # Apache Kafka remembers a group of which it has only ever refused a commit; nothing depends on that.
    name = chance.choice([history.group, unique("group")]) if len(note) <= 4096 else unique("group")
    partition = chance.choice([0, 1, 7])
    generation, member = chance.choice([(-1, ""), (-1, ""), (-1, "stranger"), (3, "stranger"), (1, "")])

    async def ask(connection: AIOKafkaConnection, _: list[int]) -> Any:
        places = [(history.topic, [(partition, offset, note)])]
        response = await connection.send(commit.OffsetCommitRequest(name, generation, member, -1, places))
        return response.topics

    return f"commit {offset} of {partition}, {generation=} {member=}, {len(note)=}", ask, _nothing_to_learn


def _committed(chance: random.Random, history: History) -> Choice:
    name = chance.choice([history.group, history.group, "never-was"])
    places = chance.choice([None, [(history.topic, [0, 1])], [(history.topic, [7])], [("unknown", [0])], []])

    async def ask(connection: AIOKafkaConnection, _: list[int]) -> Any:
        response = await connection.send(commit.OffsetFetchRequest(name, places))
        return response.error_code, sorted((topic, sorted(partitions)) for topic, partitions in response.topics)

    return f"committed offsets of {name}: {places}", ask, _nothing_to_learn


def _strangers_request(chance: random.Random, history: History) -> Choice:
    name = chance.choice([history.group, "", "never-was"])
    request = chance.choice(
        [
            group.HeartbeatRequest(name, 1, "stranger"),
            group.LeaveGroupRequest(name, "stranger"),
            group.SyncGroupRequest(name, 1, "stranger", None, []),
            group.JoinGroupRequest(name, chance.choice([1, 3000]), 3000, "stranger", None, "consumer", [("r", b"")]),
        ]
    )

    async def ask(connection: AIOKafkaConnection, _: list[int]) -> Any:
        return (await connection.send(request)).error_code

    return f"{type(request).__name__} for group {name!r}", ask, _nothing_to_learn


def _administer(chance: random.Random, history: History) -> Choice:
    name = chance.choice([history.topic, "unknown", "bad name", ""])
    counts, replicas = chance.choice([1, 1, 0, -1, -2]), chance.choice([1, 1, -1, 0, 2])
    settings = chance.choice(
        [[], [("retention.ms", "-5")], [("retention.ms", "1")], [("no.such", "1")], [("cleanup.policy", "burn")]]
    )
    total, spread = chance.choice([PARTITIONS - 1, PARTITIONS, PARTITIONS + 1, -1]), chance.choice([None, [[1]], [[5]]])
    create = admin.CreateTopicsRequest([(name, counts, replicas, [], settings)], 5000, validate_only=True)
    alter = admin.AlterConfigsRequest([(TOPIC_RESOURCE, name, settings)], validate_only=True)
    grow = admin.CreatePartitionsRequest([(name, (total, spread))], 5000, validate_only=True)
    describe = admin.DescribeConfigsRequest([(TOPIC_RESOURCE, name, ["retention.ms", "no.such"])])
    request, read = chance.choice(
        [
            (create, lambda response: [answer[:2] for answer in response.topic_errors]),
            (alter, lambda response: [(answer[0], *answer[2:]) for answer in response.resources]),
            (grow, lambda response: [answer[:2] for answer in response.topic_errors]),
            (describe, lambda response: [(answer[0], *answer[2:]) for answer in response.resources]),
            (metadata.MetadataRequest([name, name]), lambda response: sorted(response.topics)),
        ]
    )

    async def ask(connection: AIOKafkaConnection, _: list[int]) -> Any:
        return read(await connection.send(request))

    what = f"{type(request).__name__} {name!r} {counts=} {replicas=} {settings=} {total=} {spread=}"
    return what, ask, _nothing_to_learn


CHOICES: dict[Callable[[random.Random, History], Choice], int] = {
    _produce: 8,
    _list_offset: 3,
    _fetch: 4,
    _commit: 2,
    _committed: 2,
    _strangers_request: 1,
    _administer: 3,
}
