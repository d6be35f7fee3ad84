"""Test that compaction keeps the newest record of each key at its offset, also if the broker was killed."""

import shutil
import tempfile
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.record_batch import HEADER, BatchHeader, BatchRejected, intact, parse, take_place_of
from services.broker.storage.compaction import newest_offsets, survivors
from services.broker.storage.partition_log import PartitionLog
from services.broker.storage.topic_config import COMPACTED_SEGMENT_BYTES, DAY_MS, TopicConfig
from tests.support.examples import examples
from tests.unit.broker.batches import NOW_MS, build, split
from tests.unit.broker.disk import Disk, disk_that_is_full, put

COMPACT = {"cleanup.policy": "compact"}
KEYS = [b"a", b"b", b"c", b"d"]
HALF = COMPACTED_SEGMENT_BYTES // 2


def keyed(data: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of each record. Check that batches are whole and valid, with no gap between them."""
    found, expected = [], None
    for batch in split(data):
        header = BatchHeader._make(HEADER.unpack_from(batch))
        assert intact(batch, header)
        assert expected in {None, header.base_offset}
        expected = header.base_offset + header.span
        records = [(record.offset, record.key, record.value) for record in DefaultRecordBatch(bytearray(batch))]
        assert len(records) == header.record_count
        assert all(header.base_offset <= offset < expected for offset, *_ in records)
        found += records
    return found


def everything(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes | None, bytes | None]]:
    """Read the log from its start, fetch after fetch, as a client does. Return (offset, key, value) of each record."""
    found, at = [], log.start
    while at < log.end:
        data = log.read(at, max_bytes, at_least_one=True)
        found += [record for record in keyed(data) if record[0] >= at]
        last = BatchHeader._make(HEADER.unpack_from(split(data)[-1]))
        assert last.base_offset + last.span > at, "a reader goes on"
        at = last.base_offset + last.span
    return found


def memory_log(**config: str) -> PartitionLog:
    return PartitionLog(TopicConfig().with_settings(COMPACT | config), now_ms=NOW_MS)


class ALogOfKeys(RuleBasedStateMachine):
    """A Hypothesis state machine that appends to a log, compacts it and restarts the broker in any order.

    It compares the log with a list of all records that were ever written.
    """

    @initialize(append_time=st.booleans())
    def begin(self, append_time: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="railbus-compaction-"))
        kind = "LogAppendTime" if append_time else "CreateTime"
        self.disk = Disk(self.folder / "data", COMPACT | {"message.timestamp.type": kind})
        self.written: list[tuple[bytes, bytes | None]] = []
        self.sequence = 0
        self.last: tuple[bytes, int] | None = None

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
            shutil.rmtree(self.folder)

    @rule(
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
        size=st.sampled_from([0, 10, HALF, 2 * HALF - 5_000]),
        deletes=st.booleans(),
        codec=st.sampled_from([0, 1]),
    )
    def append(self, keys: list[bytes], size: int, deletes: bool, codec: int) -> None:
        values = [b"%d" % (len(self.written) + n) + b"x" * (size // len(keys)) for n in range(len(keys))]
        if deletes:
            values[-1] = None
        batch = build(values, keys=keys, compression=codec, producer=(7, 0, self.sequence))
        offset = len(self.written)
        assert put(self.disk.log, batch).offset == offset
        self.sequence += len(keys)
        self.last = batch, offset
        self.written += zip(keys, values, strict=True)

    @rule()
    def compact(self) -> None:
        self.disk.log.compact(NOW_MS)

    @rule()
    def close_a_segment_and_compact(self) -> None:
        self.disk.log.begin_segment(NOW_MS)
        self.disk.log.compact(NOW_MS)

    @precondition(lambda self: self.last is not None)
    @rule()
    def retry(self) -> None:
        batch, offset = self.last
        again = put(self.disk.log, batch)
        assert (again.offset, again.duplicate) == (offset, True)

    @rule()
    def stop_and_start(self) -> None:
        self.disk.close()
        self.disk.open()

    @rule()
    def kill_and_start(self) -> None:
        self.disk.kill()
        self.disk.open()

    @rule()
    def lose_what_can_be_made_again(self) -> None:
        """Kill the broker, delete its index files and `state.json`, and start it again.

        The broker must then find the producers' sequence numbers from the batches alone, although compaction has
        removed some of the records in these batches.
        """
        self.disk.kill()
        for path in [*self.disk.files(".index"), self.disk.partition / "state.json"]:
            path.unlink(missing_ok=True)
        self.disk.open()

    @rule()
    def die_before_the_rename(self) -> None:
        """Restart the broker as if it had been killed while it wrote a compacted segment.

        The unfinished file lies beside the segments. The broker must remove it.
        """
        self.disk.kill()
        for path in self.disk.files():
            path.with_suffix(".compacting").write_bytes(path.read_bytes()[:-7])
        self.disk.open()
        assert self.disk.files(".compacting") == []

    @precondition(lambda self: len(self.disk.files()) > 2)
    @rule()
    def die_after_the_rename(self) -> None:
        """Restart the broker as if it had been killed after a compaction, but before it deleted the old segments."""
        old = {path: path.read_bytes() for path in self.disk.files()[1:-1]}
        self.disk.log.compact(NOW_MS)
        self.disk.kill()
        for path, data in old.items():
            path.write_bytes(data)
        self.disk.open()

    @rule(back=st.integers(1, 30), max_bytes=st.sampled_from([0, 100, 1 << 20]))
    def read_from_anywhere(self, back: int, max_bytes: int) -> None:
        log = self.disk.log
        if log.start < log.end:
            at = max(log.start, log.end - back)
            data = log.read(at, max_bytes, at_least_one=True)
            first = BatchHeader._make(HEADER.unpack_from(data))
            assert first.base_offset <= at < first.base_offset + first.span
            keyed(data)

    @invariant()
    def no_offset_moves_and_the_newest_of_each_key_is_there(self) -> None:
        if not hasattr(self, "disk"):
            return
        log = self.disk.log
        assert (log.start, log.end) == (0, len(self.written))
        found = everything(log)
        assert found == sorted(found)
        assert all(self.written[offset] == (key, value) for offset, key, value in found)
        newest = {key: offset for offset, (key, _) in enumerate(self.written)}
        assert set(newest.values()) <= {offset for offset, *_ in found}
        assert log.size == sum(path.stat().st_size for path in self.disk.files())


ALogOfKeys.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)
test_a_log_of_keys = ALogOfKeys.TestCase


def test_a_log_that_is_written_for_ever_stays_small():
    log = memory_log()
    for number in range(400):
        put(log, build([b"%d" % number + b"x" * 20_000], keys=[b"key-%d" % (number % 10)]))
        log.compact(NOW_MS)
    assert log.end == 400
    assert log.size < 3 * COMPACTED_SEGMENT_BYTES, "8 MB were written, 200 kB of them are current"
    newest = {key: offset for offset, key, _ in everything(log)}
    assert newest == {b"key-%d" % (number % 10): number for number in range(390, 400)}


def test_a_deleted_key_is_told_for_a_day_and_then_forgotten():
    log = memory_log()
    put(log, build([b"1", b"2"], keys=[b"gone", b"stays"]))
    put(log, build([None], keys=[b"gone"]))
    log.begin_segment(NOW_MS)
    assert log.compact(NOW_MS + DAY_MS)
    assert everything(log) == [(1, b"stays", b"2"), (2, b"gone", None)]
    put(log, build([b"3" * 300], keys=[b"other"], times_ms=[NOW_MS + 1]))
    log.begin_segment(NOW_MS)
    assert log.compact(NOW_MS + DAY_MS + 1)
    assert everything(log) == [(1, b"stays", b"2"), (3, b"other", b"3" * 300)]
    assert (log.start, log.end) == (0, 4)


def test_times_are_found_where_records_were_removed():
    log = memory_log()
    for number in range(4):
        put(log, build([b"x"], keys=[b"a" if number < 3 else b"b"], times_ms=[NOW_MS + 10 * number]))
    log.begin_segment(NOW_MS)
    assert log.compact(NOW_MS)
    assert [offset for offset, *_ in everything(log)] == [2, 3]
    assert log.find_time(NOW_MS) == (2, NOW_MS + 20)
    assert log.find_time(NOW_MS + 25) == (3, NOW_MS + 30)
    assert log.find_time(NOW_MS + 31) is None


def test_neighbours_without_a_record_become_one_empty_batch():
    log = memory_log()
    for number in range(50):
        put(log, build([b"%d" % number], keys=[b"a"]))
    data = split(log.read(0, 1 << 20, at_least_one=True))
    kept = list(survivors(data, newest_offsets(data), 0))
    assert [(batch.base, batch.span) for batch in kept] == [(0, 49), (49, 1)]


def test_a_record_without_a_key_is_refused_as_kafka_does():
    log = memory_log()
    with pytest.raises(BatchRejected) as refused:
        put(log, build([b"1", b"2"], keys=[b"a", None]))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert log.end == 0


def test_retention_drops_nothing_where_only_compaction_was_asked_for():
    log = memory_log(**{"retention.ms": "1000"})
    put(log, build([b"1"], keys=[b"a"]))
    log.expire(NOW_MS + DAY_MS)
    assert everything(log) == [(0, b"a", b"1")]
    both = memory_log(**{"retention.ms": "1000", "cleanup.policy": "compact,delete"})
    put(both, build([b"1"], keys=[b"a"]))
    both.expire(NOW_MS + DAY_MS)
    assert (both.start, both.end) == (1, 1)


def test_a_batch_that_cannot_be_opened_keeps_its_partition_as_it_is():
    """A partition with a batch that cannot be decompressed is not compacted, because the batch's keys are unknown."""
    log = memory_log()
    put(log, build([b"1"], keys=[b"a"]))
    damaged = bytearray(build([b"2"], keys=[b"a"], compression=1))
    damaged[70:75] = b"\0\0\0\0\0"
    take_place_of(damaged, BatchHeader._make(HEADER.unpack_from(damaged)))
    put(log, bytes(damaged))
    size = log.size
    log.begin_segment(NOW_MS)
    assert not log.compact(NOW_MS)
    assert (log.size, log.end) == (size, 2)


@pytest.mark.parametrize("at", [7, 8, 16, 26, 68])  # base offset, length, magic, last offset delta, a value
def test_a_batch_damaged_on_the_disk_keeps_its_partition_as_it_is(tmp_path, at):
    disk = Disk(tmp_path / "data", COMPACT)
    for key in (b"a", b"b", b"a"):
        put(disk.log, build([b"1", b"2"], keys=[key, b"c"]))
    disk.log.begin_segment(NOW_MS)
    path = disk.files()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 3 + at] ^= 1
    path.write_bytes(data)
    assert not disk.log.compact(NOW_MS)
    assert path.read_bytes() == data
    disk.close()


def test_a_compaction_without_room_is_tried_again(tmp_path):
    disk = Disk(tmp_path / "data", COMPACT)
    for number in range(60):
        put(disk.log, build([b"x" * 20_000], keys=[b"%d" % (number % 5)]))
    with disk_that_is_full(1_000), pytest.raises(OSError, match="File too large"):
        disk.log.compact(NOW_MS)
    assert not disk.log.compact(NOW_MS + 59_999)
    assert disk.log.compact(NOW_MS + 60_000)
    disk.close()


def test_records_that_are_not_compressed_are_not_marked_as_compressed():
    original = parse(build([b"1"] * 50, compression=1))
    batch = bytearray(build([b"1"]))
    take_place_of(batch, original)
    assert parse(batch).codec == 0
    assert [record.value for record in DefaultRecordBatch(batch)] == [b"1"]
