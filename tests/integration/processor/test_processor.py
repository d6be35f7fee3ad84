"""Tests of the processor on a real broker: what it tells its core, when it does so, and what it writes for the core."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import confluent_kafka
import pytest

from schemas.stream import Chunk
from schemas.topics import Topic
from schemas.wire import encode, key_of
from services.bus import BusSettings, Producer, Received, TailReader, UnreadableRecord
from services.processor import Core, Effect, Processor, ProcessorConfig, RecordDone, RecordPosition, Write
from services.runtime.clock import steady_us
from tests.integration.bus.conftest import NewTopic
from tests.integration.bus.lab import chunk, closed, request_in
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of
from tests.support.waiting import PATIENCE_S, until

HOUR_MS = 3_600_000


class Recorder(Core):
    """A core that lists the processor's calls in ``told``. For every record, ``read`` returns ``answer``."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.read_of: dict[int, list[int]] = {}
        self.times_us: list[tuple[int, int]] = []  # when each record was appended, and when it was read
        self.due_us: dict[int, int] = {}
        self.open = 0
        self.answer: Sequence[Effect] = ()

    @property
    def backlog(self) -> int:
        return self.open

    def gained(self, number: int) -> None:
        self.told.append(("gained", number))
        self.read_of[number] = []

    def lost(self, number: int) -> None:
        self.told.append(("lost", number))
        del self.read_of[number]
        self.due_us.pop(number, None)

    def read(self, record: Received | UnreadableRecord, at_us: int, now_us: int) -> Sequence[Effect]:
        self.told.append(("read", record.partition))
        self.read_of[record.partition].append(record.offset)
        self.times_us.append((at_us, now_us))
        return self.answer

    def caught_up(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:
        self.told.append(("caught up", number))
        return ()

    def alarm_us(self, number: int, now_us: int) -> int | None:
        return self.due_us.get(number)

    def tick(self, number: int, known_us: int, now_us: int) -> Sequence[Effect]:
        assert known_us >= self.due_us.pop(number)
        self.told.append(("tick", number))
        return ()


@pytest.fixture
def group() -> str:
    return f"group-{random.getrandbits(64):x}"


@pytest.fixture
async def topics(settings: BusSettings, new_topic: NewTopic) -> list[Topic]:
    return [await new_topic(), await new_topic()]


@asynccontextmanager
async def processing(
    settings: BusSettings, core: Core, group: str, topics: Sequence[Topic], *, rewind_ms: int | None = HOUR_MS,
    drain_s: float = 1.0,
) -> AsyncIterator[Processor]:  # fmt: skip
    reading = ProcessorConfig(group=group, topics=topics, rewind_ms=rewind_ms, drain_s=drain_s)
    processor = Processor(settings, reading, core, Producer(settings, role=any_role(), name="core"))
    task = asyncio.create_task(processor.run())
    ready = asyncio.ensure_future(until(lambda: processor.ready, "the processor is ready"))
    try:
        await asyncio.wait({task, ready}, return_when="FIRST_COMPLETED")
        (task if task.done() else ready).result()
        yield processor
    finally:
        ready.cancel()
        task.cancel()
        await asyncio.gather(task, ready, return_exceptions=True)


async def test_the_past_is_read_before_a_number_is_decided_about(
    settings: BusSettings, producer: Producer, topics: list[Topic], group: str
) -> None:
    for topic in topics:
        for number in range(4):
            await producer.send(topic, chunk(request_in(number), 0))
    core = Recorder()
    async with processing(settings, core, group, topics):
        for number in range(4):
            mine = [what for what, which in core.told if which == number]
            assert mine == ["gained", "read", "read", "caught up"], "nothing before the past of both topics is read"
    assert [what for what, _ in core.told].count("lost") == 0, "who leaves writes nothing more anyway"


async def test_a_second_member_takes_its_share_and_what_is_kept_notices_nothing(
    settings: BusSettings, producer: Producer, topics: list[Topic], group: str
) -> None:
    first, second, stop = Recorder(), Recorder(), asyncio.Event()
    ids = {number: request_in(number) for number in range(4)}

    async def write() -> int:
        for seq in range(10_000):
            if stop.is_set():
                return seq
            for topic in topics:
                for request_id in ids.values():
                    await producer.post(topic, chunk(request_id, seq))
            await asyncio.sleep(0.01)
        raise AssertionError("the test takes too long")

    async with processing(settings, first, group, topics) as one:
        writing = asyncio.create_task(write())
        for _ in range(2):
            async with processing(settings, second, group, topics):
                await until(lambda: len(first.read_of) == len(second.read_of) == 2)
                assert first.read_of.keys() | second.read_of.keys() == {0, 1, 2, 3}
            await until(lambda: len(first.read_of) == 4 and one.ready)  # caught up with what it has gained
        stop.set()
        total = await writing
        moved = {number for what, number in first.told if what == "lost"}
        assert len(moved) == 2, "the same two numbers go to and fro"
        for number in {0, 1, 2, 3} - moved:
            await until(lambda number=number: len(first.read_of[number]) == 2 * total)
            told = [what for what, which in first.told if which == number and what != "read"]
            assert told == ["gained", "caught up"]
            assert sorted(first.read_of[number]) == sorted([*range(total)] * 2), "once each, over four rebalances"
        for number in moved:
            told = [what for what, which in first.told if which == number and what != "read"]
            assert told == ["gained", "caught up", "lost", "gained", "caught up", "lost", "gained", "caught up"]


async def test_the_clock_decides_only_after_what_stands_on_the_log_was_read(
    settings: BusSettings, topics: list[Topic], group: str
) -> None:
    """After a pause of the process, the core first gets the records on the log, and then the tick that is due."""
    core, another = Recorder(), Another(settings)

    async def read_at_once() -> bool:
        """Write a record, and return whether it was read within 0.1 s.

        From a record that is read so quickly, the processor learns how far the broker's clock differs from its own.
        """
        began_us, count = steady_us(), len(core.times_us)
        another.write(topics[1], chunk(request_in(2), 0))
        await until(lambda: len(core.times_us) > count)
        return core.times_us[-1][1] - began_us < 100_000

    async with processing(settings, core, group, topics):
        for _ in range(5):
            await until(read_at_once, "a record is read at once")
            core.told.clear()
            core.due_us[2] = steady_us() + 150_000
            began_us = steady_us()
            another.write(topics[1], chunk(request_in(2), 0))  # returns when the broker has it; the loop stands still
            written_us = steady_us()
            time.sleep(0.6)  # noqa: ASYNC251 - a process that is paused
            assert not core.told
            await until(lambda: ("tick", 2) in core.told)
            assert [what for what, number in core.told if number == 2] == ["read", "tick"]
            appended_us, _ = core.times_us[-1]
            assert began_us - 10_000 < appended_us < written_us + 110_000, "while nobody read, not when it was read"


class Another:
    """A producer with its own threads, which goes on writing while the test's event loop stands still."""

    def __init__(self, settings: BusSettings) -> None:
        self._client = confluent_kafka.Producer(
            {"bootstrap.servers": settings.bootstrap, "partitioner": "murmur2_random"}
        )

    def write(self, topic: Topic, event: Chunk) -> None:
        value, headers = encode(event)
        self._client.produce(topic.name, value, key_of(event), headers=headers)
        assert self._client.flush(PATIENCE_S) == 0


async def test_what_is_done_is_committed_and_what_is_under_way_comes_to_its_end(
    settings: BusSettings, producer: Producer, topics: list[Topic], group: str
) -> None:
    (log, answers), request_id = topics, request_in(1)
    for seq in range(4):
        await producer.send(log, chunk(request_id, seq))
    core = Recorder()
    async with processing(settings, core, group, [log], rewind_ms=None, drain_s=30.0) as processor:
        await until(lambda: core.read_of[1] == [0, 1, 2, 3])
        core.open = 2
        processor.perform_all(
            [
                RecordDone(RecordPosition(log.name, 1, 0)),
                Write(answers, closed(request_id), None, RecordPosition(log.name, 1, 1)),
            ]
        )

        async def finish() -> None:
            await asyncio.sleep(0.3)
            processor.perform_all([Write(answers, closed(request_id), None, RecordPosition(log.name, 1, 2))])
            core.open = 0

        finishing = asyncio.create_task(finish())
    await finishing
    again = Recorder()
    async with processing(settings, again, group, [log], rewind_ms=None):
        await until(lambda: again.read_of[1] == [3])
    tail = TailReader(settings, handler=lambda _: None)
    reading = asyncio.create_task(tail.run())
    assert await tail.end_offset(answers, 1) == 2, "both answers were written, the second while it was stopping"
    reading.cancel()


async def test_nothing_is_written_for_another_members_partition(
    settings: BusSettings, topics: list[Topic], group: str
) -> None:
    log, answers = topics
    first, second = Recorder(), Recorder()
    tail = TailReader(settings, handler=lambda _: None)
    reading = asyncio.create_task(tail.run())
    async with processing(settings, first, group, [log]) as one, processing(settings, second, group, [log]):
        await until(lambda: len(first.read_of) == len(second.read_of) == 2)
        one.perform_all([Write(answers, closed(request_in(number))) for number in range(4)])

        async def ends() -> dict[int, int]:
            return {number: await tail.end_offset(answers, number) for number in range(4)}

        async def own_are_written() -> bool:
            return sum((await ends()).values()) >= len(first.read_of)

        await until(own_are_written, "what it writes for its own partitions")
        await asyncio.sleep(0.3)
        assert await ends() == {number: int(number in first.read_of) for number in range(4)}
    reading.cancel()


async def test_it_is_ready_only_while_the_broker_tells_it_where_the_log_ends(
    own_embedded_broker: Broker, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from schemas.topics import STREAMS
    from services.bus import ensure_topics
    from services.processor import processor as module

    monkeypatch.setattr(module, "STALE_S", 2.0)
    settings = BusSettings(bootstrap=own_embedded_broker.address, session_timeout_ms=6_000)
    topic = copy_of(dataclasses.replace(STREAMS))
    await ensure_topics(settings, [topic])
    async with processing(settings, Recorder(), group, [topic]) as processor:
        await until(lambda: processor.ready)
        own_embedded_broker.kill()
        await until(lambda: not processor.ready)
        own_embedded_broker.start()
        await until(lambda: processor.ready)
