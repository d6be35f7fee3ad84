"""Test that all partitions of an in-memory broker together stay within the memory limit."""

from services.broker.protocol.wire import Writer
from services.broker.settings import BrokerSettings
from services.broker.state import BrokerState
from tests.unit.broker import raw
from tests.unit.broker.batches import NOW_MS, build
from tests.unit.broker.raw import connected


async def test_the_oldest_records_of_the_largest_partition_go_first(caplog):
    bound = 4 * 1024 * 1024
    broker = BrokerState(BrokerSettings(memory_bytes=bound))
    broker.start()
    for name, partitions in (("small", 1), ("large", 2)):
        broker.topics.create(name, partitions, {"retention.ms": "-1", "retention.bytes": "-1"}, now_ms=NOW_MS)
    small, first, second = broker.log("small", 0), broker.log("large", 0), broker.log("large", 1)
    batch = build([b"x" * 100_000])
    for number in range(200):
        for log in (first, second, *([small] if number < 5 else [])):
            log.produce(batch, 7, NOW_MS)
            broker.appended(log, len(batch))
            kept = sum(each.memory_bytes for each in (small, first, second))
            assert kept <= bound + bound // 16 + len(batch)
    assert (small.start, small.end) == (0, 5)
    assert first.start > 0
    assert first.end == 200
    assert len([record for record in caplog.records if "--memory-bytes" in record.message]) == 1
    broker.stop()


async def test_a_deleted_topic_of_a_fetch_session_takes_no_memory(broker):
    opens_a_session = Writer().i32(-1).i32(0).i32(1).i32(1000).i8(0).i32(0).i32(0)
    opens_a_session.i32(1).string("t").i32(1).i32(0).i64(0).i64(-1).i32(1000).i32(0)
    async with connected(broker) as client:
        await raw.create(broker, "t")
        await client.ask(raw.PRODUCE, 7, raw.produce("t", build([b"x" * 500_000])))
        answer = await client.ask(raw.FETCH, 7, opens_a_session.done())
        assert (answer.i32(), answer.i16()) == (0, 0)
        session = broker._broker.fetch_sessions.find(answer.i32())
        await client.ask(20, 1, Writer().i32(1).string("t").i32(1000).done())
    (held,) = session.partitions.values()
    assert held.log.deleted
    assert held.log.memory_bytes == 0
