"""Tests of a log in files: what the broker reads at its start, full disks, damaged files, and bounded memory."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.broker.groups.committed_offsets import CommittedOffset, CommittedOffsets, TopicPartition
from services.broker.storage import data_directory, error_log
from services.broker.storage.file_segment import MAX_OPEN_SEGMENTS, FileSegment, LogTail, OpenSegments, TailBudget
from services.broker.storage.offset_journal import OffsetJournal
from services.broker.storage.segment import Segment
from services.broker.storage.topic_config import SMALLEST_SEGMENT_BYTES, TopicConfig
from tests.support.examples import examples
from tests.unit.broker.batches import NOW_MS, build, records
from tests.unit.broker.disk import Disk, disk_that_is_full, everything, fill, put


@pytest.fixture
def disk(tmp_path):
    opened = Disk(tmp_path / "data")
    yield opened
    opened.close()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(disk):
    wanted = fill(disk.log, 6_000, 3_000)
    assert disk.log.size > 18_000_000
    assert disk.log.memory_bytes < 100_000
    assert everything(disk.log) == wanted
    assert len(disk.files()) == 2
    disk.close()
    disk.open()
    assert disk.log.memory_bytes < 100_000
    assert everything(disk.log) == wanted


def test_files_of_old_segments_are_opened_and_closed(disk):
    disk.log.config = TopicConfig(segment_bytes=SMALLEST_SEGMENT_BYTES)
    wanted = fill(disk.log, 150, SMALLEST_SEGMENT_BYTES // 2)
    assert len(disk.files()) > MAX_OPEN_SEGMENTS
    for _ in range(2):
        assert everything(disk.log) == wanted
        assert len(disk.storage._opened._open) == MAX_OPEN_SEGMENTS
    disk.log.config = TopicConfig(retention_bytes=0)
    disk.log.expire(NOW_MS)
    assert len(disk.storage._opened._open) == 0
    assert len(disk.files()) == 1


def read_files(monkeypatch) -> list[Path]:
    """From now on, record which segment files are read as a whole. Return the list to which their paths are added."""
    whole, read_bytes = [], Path.read_bytes

    def noted(path: Path) -> bytes:
        if path.suffix == ".log":
            whole.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    return whole


def test_after_a_stop_no_batch_is_read_and_after_a_kill_the_newest_segment(disk, monkeypatch):
    for _ in range(3):
        fill(disk.log, 5)
        disk.log.begin_segment(NOW_MS)
    wanted = everything(disk.log) + fill(disk.log, 5)
    whole = read_files(monkeypatch)
    disk.close()
    disk.open()
    assert whole == []
    wanted += fill(disk.log, 5)
    disk.kill()
    disk.open()
    assert whole == disk.files()[-1:]
    assert everything(disk.log) == wanted


def test_a_start_on_a_machine_that_went_down_reads_every_batch(disk, monkeypatch):
    for _ in range(3):
        fill(disk.log, 5)
        disk.log.begin_segment(NOW_MS)
    wanted = everything(disk.log)
    whole = read_files(monkeypatch)
    disk.kill()
    monkeypatch.setattr(data_directory, "_boot_id", lambda: "another")
    disk.open()
    assert len(whole) == 4
    assert everything(disk.log) == wanted
    disk.close()
    whole.clear()
    disk.open()
    assert whole == []


def test_a_folder_of_the_version_before_is_read_and_goes_on(tmp_path):
    """The broker reads and continues a data directory that its previous version has written.

    The directory, tests/data/broker_log_1, has batches but no index, and its file `lock` is empty.
    """
    shutil.copytree(Path(__file__).parents[2] / "data" / "broker_log_1", tmp_path / "data")
    disk = Disk(tmp_path / "data")
    assert everything(disk.log) == [(number, b"old %d" % number) for number in range(40)]
    retried = build([b"old 39"], producer=(5, 0, 39), times_ms=[NOW_MS + 39])
    assert put(disk.log, retried).duplicate
    assert len(disk.files()) > 1
    wanted = everything(disk.log) + fill(disk.log, 3)
    disk.kill()
    disk.open()
    assert everything(disk.log) == wanted
    disk.close()


def test_a_batch_that_the_disk_refuses_is_absent_and_reading_continues(disk):
    wanted = fill(disk.log, 30)
    size = disk.log.size
    with disk_that_is_full(size + 500):
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                put(disk.log, build([b"y" * 1000], producer=(9, 0, 0)))
        assert (disk.log.end, disk.log.size, disk.files()[0].stat().st_size) == (30, size, size)
        assert everything(disk.log, 5_000) == wanted
    assert not put(disk.log, build([b"y" * 1000], producer=(9, 0, 0))).duplicate
    wanted.append((30, b"y" * 1000))
    disk.kill()
    disk.open()
    assert everything(disk.log) == wanted


def test_an_offset_without_room_is_refused_and_spoils_no_later_one(tmp_path):
    path, place = tmp_path / "offsets.jsonl", TopicPartition("t", 0)
    journal = OffsetJournal(path)
    offsets = CommittedOffsets(journal)
    journal.load(offsets)
    offsets.commit("g", place, CommittedOffset(1, -1, ""))
    with disk_that_is_full(path.stat().st_size + 10):
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                offsets.commit("g", place, CommittedOffset(2, -1, ""))
    assert offsets.of("g")[place].offset == 1
    offsets.commit("g", place, CommittedOffset(3, -1, ""))
    journal.close()
    restarted = CommittedOffsets()
    OffsetJournal(path).load(restarted)
    assert restarted.of("g") == {place: CommittedOffset(3, -1, "")}


def test_failed_attempts_to_create_a_topic_take_no_memory_from_others(disk):
    before = disk.storage._budget.partitions
    with disk_that_is_full(0):
        for _ in range(10):
            with pytest.raises(OSError, match="File too large"):
                disk.topics.create("new", 1, {}, now_ms=NOW_MS)
    disk.topics.create("new", 1, {}, now_ms=NOW_MS)
    assert disk.storage._budget.partitions == before + 1


def test_without_room_for_an_index_a_segment_is_read_without_it(disk, caplog, monkeypatch):
    monkeypatch.setattr(error_log, "_errors", error_log.StorageErrorLog())
    wanted = fill(disk.log, 40)
    with disk_that_is_full(100):
        disk.log.begin_segment(NOW_MS)
    assert disk.files(".index")[0].stat().st_size <= 100
    assert everything(disk.log, 3_000) == wanted
    assert any("cannot be written" in line for line in caplog.messages)
    disk.kill()
    disk.open()
    assert everything(disk.log) == wanted


def test_retention_goes_on_while_there_is_no_room_for_a_new_segment(disk):
    fill(disk.log, 5)
    disk.log.begin_segment(NOW_MS)
    fill(disk.log, 5)
    disk.log.config = TopicConfig(retention_ms=1000)
    blocked = disk.partition / f"{10:020d}.log"
    blocked.mkdir()
    with pytest.raises(OSError, match="directory"):
        disk.log.expire(NOW_MS + 2_000)
    assert disk.log.start == 5
    blocked.rmdir()
    disk.log.expire(NOW_MS + 2_000)
    assert (disk.log.start, disk.log.end) == (10, 10)


def test_a_file_removed_or_cut_under_the_broker_fails_that_read_only(disk):
    fill(disk.log, 40)
    disk.log.begin_segment(NOW_MS)
    newest = fill(disk.log, 1)
    os.truncate(disk.files()[0], 100)
    with pytest.raises(OSError, match=r"shorter|damaged"):
        disk.log.read(20, 1000, at_least_one=True)
    disk.storage._opened.close_all()
    disk.files()[0].unlink()
    with pytest.raises(OSError, match="No such file"):
        disk.log.read(20, 1000, at_least_one=True)
    assert records(disk.log.read(40, 1000, at_least_one=True)) == newest


def test_an_index_without_its_segment_is_removed(disk):
    fill(disk.log, 1)
    stray = disk.partition / f"{99:020d}.index"
    stray.write_bytes(b"")
    disk.kill()
    disk.open()
    assert not stray.exists()


def test_records_of_a_slow_topic_get_old_across_restarts(disk):
    """A segment's age counts from its first record, and not from the last start of the broker."""
    disk.topics.configure(
        "t", {"retention.ms": "80000", "message.timestamp.type": "LogAppendTime"}, validate_only=False
    )
    put(disk.log, build([b"a"]), NOW_MS - 20_000)
    disk.close()
    disk.open()
    disk.log.expire(NOW_MS)
    assert len(disk.files()) == 2


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.sampled_from([61, 500, 1_000, 4_000, 7_000, 9_000]), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 12_000),
)
def test_a_tail_in_two_buffers_reads_as_one_segment(sizes, back, max_bytes):
    tail, whole = LogTail(0, TailBudget(0)), Segment(0, 0)
    for offset, size in enumerate(sizes):
        for each in (tail, whole):
            each.append(bytes([offset]) * size, offset, 1, NOW_MS)
    offset = max(tail.base, len(sizes) - back)
    for at_least_one in (True, False):
        assert tail.read(offset, max_bytes, at_least_one=at_least_one) == whole.read(
            offset, max_bytes, at_least_one=at_least_one
        )
    assert tail.available(offset, max_bytes) >= min(max_bytes, whole.available(offset, max_bytes))


@settings(max_examples=examples(150))
@given(
    sizes=st.lists(st.sampled_from([1, 300, 6_000, 14_000, 40_000]) | st.integers(1, 20_000), min_size=2, max_size=40),
    at=st.integers(0, 39),
    max_bytes=st.sampled_from([0, 1 << 20]) | st.integers(0, 250_000),
)
def test_a_file_is_read_as_memory_is_whatever_the_sizes(tmp_path_factory, sizes, at, max_bytes):
    path = tmp_path_factory.mktemp("segment") / "0.log"
    in_file, in_memory = FileSegment(path, 0, 0, OpenSegments(), TailBudget(0)), Segment(0, 0)
    for offset, size in enumerate(sizes):
        batch = bytearray(build([b"x" * size]))
        batch[:8] = offset.to_bytes(8, "big")
        for segment in (in_file, in_memory):
            segment.append(batch, offset, 1, NOW_MS)
    offset = at % len(sizes)
    for at_least_one in (True, False):
        wanted = in_memory.read(offset, max_bytes, at_least_one=at_least_one)
        assert in_file._read_file(offset, max_bytes, at_least_one=at_least_one) == wanted
    in_file.close()


def test_damage_that_no_index_tells_of_does_not_stop_a_start(disk):
    wanted = fill(disk.log, 10)
    disk.log.begin_segment(NOW_MS)
    fill(disk.log, 1)
    disk.kill()
    (disk.partition / "state.json").unlink()
    path = disk.files()[0]
    before, data = path.stat(), bytearray(path.read_bytes())
    data[5 * len(data) // 10 + 8] ^= 0x40  # of the sixth batch's length
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    disk.open()
    assert everything(disk.log) == wanted[:5]
    assert put(disk.log, build([b"next"])).offset == 5


def test_what_was_known_of_lost_batches_stays_forgotten(disk):
    """If batches at the end of a log are lost, the broker appends them when their producer sends them again.

    `state.json` still lists the lost batches. The broker must delete this file at its first start after the loss. To
    check this, the test writes other records until the log is longer than before the loss. Then it kills the broker and
    starts it again. If `state.json` still existed, the broker would now trust it. It would take the lost batches for
    duplicates, and acknowledge them without appending them.
    """
    batches = [build([b"%d" % number], producer=(9, 0, number)) for number in range(6)]
    for batch in batches[:4]:
        put(disk.log, batch)
    disk.close()
    path = disk.files()[0]
    os.truncate(path, path.stat().st_size // 2)
    disk.open()
    assert disk.log.end == 2
    put(disk.log, build([b"another", b"one", b"and one", b"more"], producer=(8, 0, 0)))
    disk.kill()
    disk.open()
    for number, batch in enumerate(batches[2:]):
        assert put(disk.log, batch).offset == 6 + number
    assert [value for _, value in everything(disk.log)][6:] == [b"2", b"3", b"4", b"5"]
