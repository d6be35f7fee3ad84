import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from services.broker.protocol import record_batch as batches
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.record_batch import BatchRejected
from services.broker.storage.partition_log import AppendResult, PartitionLog, TimestampAndOffset
from services.broker.storage.topic_config import SMALLEST_SEGMENT_BYTES, TopicConfig
from tests.support.examples import examples
from tests.unit.broker.batches import NOW_MS, build, records, split

MINUTE_MS = 60_000


def log(**config) -> PartitionLog:
    return PartitionLog(TopicConfig(**config), now_ms=NOW_MS)


def put(to: PartitionLog, batch: bytes, now_ms: int = NOW_MS) -> AppendResult:
    return to.produce(batch, 7, now_ms)


def read(of: PartitionLog, offset: int, max_bytes: int = 1 << 30) -> list[tuple[int, bytes]]:
    return records(of.read(offset, max_bytes, at_least_one=True))


def test_batches_get_their_offsets_and_stay_as_they_were():
    kept = log()
    assert put(kept, build([b"a", b"b"])) == AppendResult(0, duplicate=False)
    assert put(kept, build([b"c"])) == AppendResult(2, duplicate=False)
    assert (kept.start, kept.end) == (0, 3)
    assert read(kept, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_a_read_from_the_middle_of_a_batch_gives_the_whole_batch():
    kept = log()
    put(kept, build([b"a", b"b", b"c"]))
    put(kept, build([b"d"]))
    assert read(kept, 2) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert read(kept, 3) == [(3, b"d")]
    assert kept.read(4, 100, at_least_one=True) == b""


def test_limits_cut_between_batches_and_the_first_is_always_given():
    kept = log()
    for value in (b"a", b"b", b"c"):
        put(kept, build([value]))
    size = len(build([b"a"]))
    assert read(kept, 0, 2 * size) == [(0, b"a"), (1, b"b")]
    assert read(kept, 0, 2 * size - 1) == [(0, b"a")]
    assert read(kept, 1, 0) == [(1, b"b")]
    assert kept.read(1, size - 1, at_least_one=False) == b""
    assert kept.available(0, 2 * size) == 2 * size


def test_a_batch_too_large_for_the_topic_is_refused_and_nothing_changes():
    kept = log(max_message_bytes=200)
    put(kept, build([b"a" * 50]))
    with pytest.raises(BatchRejected) as refused:
        put(kept, build([b"a" * 200]))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert kept.end == 1


def test_a_record_dated_far_ahead_is_refused():
    with pytest.raises(BatchRejected) as refused:
        put(log(), build(times_ms=[NOW_MS + 61 * MINUTE_MS]))
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP


def test_a_retry_is_acknowledged_again_and_not_appended():
    kept = log()
    first, second = build([b"a", b"b"], producer=(9, 0, 0)), build([b"c"], producer=(9, 0, 2))
    put(kept, first)
    put(kept, second)
    assert put(kept, first) == AppendResult(0, duplicate=True, time_ms=NOW_MS)
    assert kept.end == 3
    with pytest.raises(BatchRejected) as refused:
        put(kept, build([b"d"], producer=(9, 0, 4)))
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_first_record_at_or_after_a_time_is_found_in_any_batching():
    kept = log()
    put(kept, build([b"a", b"b"], times_ms=[NOW_MS, NOW_MS + 10]))
    put(kept, build([b"c", b"d"], times_ms=[NOW_MS + 5, NOW_MS + 30], compression=1))
    put(kept, build([b"e"], times_ms=[NOW_MS + 20]))
    assert kept.find_time(0) == TimestampAndOffset(0, NOW_MS)
    assert kept.find_time(NOW_MS + 1) == TimestampAndOffset(1, NOW_MS + 10)
    assert kept.find_time(NOW_MS + 11) == TimestampAndOffset(3, NOW_MS + 30)
    assert kept.find_time(NOW_MS + 31) is None
    assert log().find_time(0) is None


def test_a_batch_that_cannot_be_opened_is_found_as_a_whole():
    kept = log()
    put(kept, build([b"before"]))
    times = [NOW_MS + 5, NOW_MS + 9]
    sealed = bytearray(build([b"a", b"b"], times_ms=times))
    sealed[22] |= 3  # the header says lz4, but the data is not
    sealed[17:21] = calc_crc32c(sealed[21:]).to_bytes(4, "big")
    put(kept, bytes(sealed))
    assert kept.find_time(NOW_MS + 6) == TimestampAndOffset(1, NOW_MS + 9)


def test_append_time_is_written_into_a_batch_that_stays_valid():
    kept = log(append_time=True)
    assert put(kept, build([b"a", b"b"], times_ms=[0, NOW_MS * 2]), NOW_MS) == AppendResult(
        0, duplicate=False, time_ms=NOW_MS
    )
    put(kept, build([b"c" * 500] * 3, compression=1), NOW_MS + 5)
    assert [(offset, value[:1]) for offset, value in read(kept, 0)] == [
        (0, b"a"), (1, b"b"), (2, b"c"), (3, b"c"), (4, b"c"),
    ]  # fmt: skip
    assert stamps(kept) == [(0, NOW_MS, 1), (1, NOW_MS, 1), *((offset, NOW_MS + 5, 1) for offset in (2, 3, 4))]


def test_the_time_of_the_append_never_goes_back_even_where_the_clock_does():
    kept = log(append_time=True)
    times = [put(kept, build(), NOW_MS + late).time_ms for late in (0, 7, -1000, 6, 8)]
    assert times == [NOW_MS, NOW_MS + 7, NOW_MS + 7, NOW_MS + 7, NOW_MS + 8]


def test_what_clients_said_of_the_time_does_not_push_the_partitions_own():
    kept = log(timestamp_after_max_ms=10 * MINUTE_MS)
    assert put(kept, build(times_ms=[NOW_MS + MINUTE_MS])).time_ms == -1
    kept.config = TopicConfig(append_time=True)
    assert put(kept, build()).time_ms == NOW_MS


def test_a_record_is_found_by_the_time_of_its_append():
    kept = log(append_time=True)
    for late in (0, 10, 20):
        put(kept, build([b"a", b"b"], times_ms=[1, 2]), NOW_MS + late)
    assert kept.find_time(0) == TimestampAndOffset(0, NOW_MS)
    assert kept.find_time(NOW_MS + 1) == TimestampAndOffset(2, NOW_MS + 10)
    assert kept.find_time(NOW_MS + 20) == TimestampAndOffset(4, NOW_MS + 20)
    assert kept.find_time(NOW_MS + 21) is None


def test_records_go_by_the_time_of_their_append_whatever_clients_say():
    kept = log(append_time=True, retention_ms=10 * MINUTE_MS)
    put(kept, build(times_ms=[1]))
    kept.expire(NOW_MS + 10 * MINUTE_MS)
    assert kept.start == 0
    kept.expire(NOW_MS + 10 * MINUTE_MS + 1)
    assert kept.start == 1


def test_a_retry_is_told_the_time_of_the_first_append():
    kept = log(append_time=True)
    batch = build([b"a"], producer=(9, 0, 0))
    put(kept, batch)
    assert put(kept, batch, NOW_MS + 50) == AppendResult(0, duplicate=True, time_ms=NOW_MS)


def test_a_client_may_not_say_when_its_batch_was_appended():
    built = build()
    said = batches.place(built, batches.parse(built), 0, NOW_MS)
    with pytest.raises(BatchRejected) as refused:
        put(log(append_time=True), said)
    assert refused.value.code is ErrorCode.INVALID_TIMESTAMP
    kept = log()
    assert put(kept, said).time_ms == -1
    assert stamps(kept) == [(0, NOW_MS, 0)]


def stamps(of: PartitionLog) -> list[tuple[int, int, int]]:
    """Return (offset, timestamp, timestamp type) of each record of a log, as a client reads them."""
    found = (DefaultRecordBatch(bytearray(batch)) for batch in split(of.read(0, 1 << 30, at_least_one=True)))
    return [(record.offset, record.timestamp, record.timestamp_type) for batch in found for record in batch]


def test_retention_by_bytes_drops_the_oldest_segments_and_moves_the_start():
    kept = log(retention_bytes=4 * SMALLEST_SEGMENT_BYTES)
    batch = build([b"x" * 10_000])
    for _ in range(100):
        put(kept, batch)
        kept.expire(NOW_MS)
    assert 4 * SMALLEST_SEGMENT_BYTES <= kept.size < 5 * SMALLEST_SEGMENT_BYTES + len(batch)
    assert kept.start > 0
    assert kept.end == 100
    assert next(offset for offset, _ in read(kept, kept.start)) == kept.start
    assert len(records(kept.read(99, 1, at_least_one=True))) == 1


def test_retention_by_time_drops_old_records_of_the_newest_segment_too():
    kept = log(retention_ms=10 * MINUTE_MS, retention_bytes=-1)
    put(kept, build([b"old"]))
    later = NOW_MS + 5 * MINUTE_MS
    kept.expire(later)
    put(kept, build([b"new"], times_ms=[later]), later)
    kept.expire(NOW_MS + 10 * MINUTE_MS)
    assert kept.start == 0
    kept.expire(NOW_MS + 10 * MINUTE_MS + 1)
    assert read(kept, kept.start) == [(1, b"new")]
    kept.expire(later + 11 * MINUTE_MS)
    assert (kept.start, kept.end, kept.size, kept.memory_bytes) == (2, 2, 0, 0)
    assert put(kept, build([b"next"], times_ms=[later]), later) == AppendResult(2, duplicate=False)


def test_memory_is_given_back_until_nothing_is_left():
    kept = log()
    put(kept, build([b"x" * 1000]))
    assert kept.memory_bytes > 1000
    assert kept.drop_oldest_segment(NOW_MS)
    assert (kept.memory_bytes, kept.start, kept.end) == (0, 1, 1)
    assert not kept.drop_oldest_segment(NOW_MS)


class Model:
    """A model of a log: a list of batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[bytes], list[int]]] = []
        self.end = 0

    def put(self, values: list[bytes], times_ms: list[int]) -> None:
        self.batches.append((self.end, values, times_ms))
        self.end += len(values)

    def read(self, offset: int) -> list[tuple[int, bytes]]:
        return [
            (base + index, value)
            for base, values, _ in self.batches
            if base + len(values) > offset
            for index, value in enumerate(values)
        ]

    def find_time(self, at_ms: int, start: int) -> TimestampAndOffset | None:
        for base, _, times_ms in self.batches:
            for index, time_ms in enumerate(times_ms):
                if base + index >= start and time_ms >= at_ms:
                    return TimestampAndOffset(base + index, time_ms)
        return None


@settings(max_examples=examples(150))
@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=30),
    st.sampled_from([0, 1, 40_000]),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_the_log_is_a_list_of_batches(appends, padding, questions):
    kept, model = log(retention_bytes=3 * SMALLEST_SEGMENT_BYTES), Model()
    for number, offsets_ms in enumerate(appends):
        values = [b"%d" % number + b"x" * padding for _ in offsets_ms]
        times_ms = [NOW_MS + each for each in offsets_ms]
        put(kept, build(values, times_ms=times_ms))
        model.put(values, times_ms)
        kept.expire(NOW_MS)
    assert kept.end == model.end
    for question in questions:
        offset = kept.start + question % (kept.end - kept.start + 1)
        got: list[tuple[int, bytes]] = []
        at = offset
        while at < kept.end:
            data = kept.read(at, 100_000, at_least_one=True)
            assert len(split(data)) == 1 or len(data) <= 100_000
            got += records(data)
            at = got[-1][0] + 1
        assert got == model.read(offset)
        assert kept.find_time(NOW_MS + question) == model.find_time(NOW_MS + question, kept.start)
