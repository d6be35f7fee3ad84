"""All partitions together stay within the memory they were given."""

from services.broker.settings import BrokerSettings
from services.broker.state import BrokerState
from tests.unit.broker.batches import NOW_MS, build


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
