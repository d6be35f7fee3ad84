import os

import orjson
import pytest

from services.broker.groups.committed_offsets import CommittedOffset, CommittedOffsets, TopicPartition
from services.broker.groups.members import AssignmentProtocol, JoinRequest, StableGroup
from services.broker.settings import BadSetting
from services.broker.storage.data_directory import Storage
from services.broker.storage.offset_journal import STALE_LINES, OffsetJournal
from services.broker.storage.partition_log import AppendResult, PartitionLog, TimestampAndOffset
from services.broker.storage.topic_config import SMALLEST_SEGMENT_BYTES, TopicConfig
from services.broker.storage.topics import Topics
from tests.unit.broker.batches import NOW_MS, build, records


class Disk:
    """A broker's data directory that a test can open, close and open again."""

    def __init__(self, folder):
        self.folder = folder
        self.storage = None
        self.open()

    def open(self):
        self.storage = Storage(self.folder)
        self.topics = Topics(TopicConfig(), self.storage)
        self.offsets = CommittedOffsets(self.storage)
        self.storage.load(self.topics, self.offsets, NOW_MS)

    def close(self):
        self.storage.close()

    def restart(self):
        self.close()
        self.open()

    def log(self, topic="t", partition=0) -> PartitionLog:
        return self.topics.existing(topic).partitions[partition]

    def files(self, topic="t", partition=0):
        return sorted((self.folder / "topics" / topic / str(partition)).glob("*.log"))


@pytest.fixture
def disk(tmp_path):
    opened = Disk(tmp_path / "data")
    yield opened
    opened.close()


def put(log: PartitionLog, batch: bytes) -> AppendResult:
    return log.produce(batch, 7, NOW_MS)


def everything(log: PartitionLog) -> list[tuple[int, bytes]]:
    found, at = [], log.start
    while at < log.end:
        found += records(log.read(at, 1 << 20, at_least_one=True))
        at = found[-1][0] + 1
    return found


def test_topics_records_and_settings_survive_a_restart(disk):
    disk.topics.create("t", 2, {"retention.ms": "-1"}, now_ms=NOW_MS)
    put(disk.log("t", 0), build([b"a", b"b"]))
    put(disk.log("t", 1), build([b"c"]))
    disk.topics.grow("t", 3, now_ms=NOW_MS, validate_only=False)
    put(disk.log("t", 2), build([b"d"]))
    disk.restart()
    assert [everything(log) for log in disk.topics.existing("t").partitions] == [
        [(0, b"a"), (1, b"b")],
        [(0, b"c")],
        [(0, b"d")],
    ]
    assert disk.topics.existing("t").config.retention_ms == -1
    assert put(disk.log("t", 0), build([b"e"])) == AppendResult(2, duplicate=False)


def test_a_producers_retry_is_known_after_a_restart(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    batch = build([b"a", b"b"], producer=(9, 0, 0))
    put(disk.log(), batch)
    disk.restart()
    assert put(disk.log(), batch) == AppendResult(0, duplicate=True, time_ms=NOW_MS)


def test_partition_time_continues_after_a_restart_with_an_earlier_clock(disk):
    disk.topics.create("t", 1, {"message.timestamp.type": "LogAppendTime"}, now_ms=NOW_MS)
    disk.log().produce(build(times_ms=[1]), 7, NOW_MS + 500)
    disk.restart()
    assert disk.topics.existing("t").config.append_time
    assert disk.log().find_time(0) == TimestampAndOffset(0, NOW_MS + 500)
    assert put(disk.log(), build()).time_ms == NOW_MS + 500


def test_segments_and_what_retention_dropped_survive_a_restart(disk):
    disk.topics.create("t", 1, {"retention.bytes": str(2 * SMALLEST_SEGMENT_BYTES)}, now_ms=NOW_MS)
    for number in range(30):
        put(disk.log(), build([b"%d" % number + b"x" * 20_000]))
        disk.log().expire(NOW_MS)
    start, kept = disk.log().start, everything(disk.log())
    assert start > 0
    assert len(disk.files()) > 1
    disk.restart()
    assert (disk.log().start, disk.log().end) == (start, 30)
    assert everything(disk.log()) == kept


def test_offsets_go_on_after_everything_was_dropped(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    put(disk.log(), build([b"a", b"b"]))
    assert disk.log().drop_oldest_segment(NOW_MS)
    disk.restart()
    assert (disk.log().start, disk.log().end) == (2, 2)


def test_a_torn_tail_is_cut_off_wherever_it_was_torn(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    put(disk.log(), build([b"a", b"b"]))
    put(disk.log(), build([b"torn"]))
    (path,) = disk.files()
    whole = path.read_bytes()
    first = len(build([b"a", b"b"]))
    for size in range(first, len(whole)):
        disk.close()
        path.write_bytes(whole[:size])
        disk.open()
        assert everything(disk.log()) == [(0, b"a"), (1, b"b")]
        assert path.stat().st_size == first
    assert put(disk.log(), build([b"c"])) == AppendResult(2, duplicate=False)


def test_a_damaged_batch_ends_the_log_there_and_the_log_goes_on(disk):
    disk.topics.create("t", 1, {"retention.bytes": str(2**40)}, now_ms=NOW_MS)
    for number in range(3):
        put(disk.log(), build([b"%d" % number]))
    disk.log().begin_segment(NOW_MS)
    put(disk.log(), build([b"later"]))
    disk.close()
    path = disk.files()[0]
    data = bytearray(path.read_bytes())
    data[len(build([b"0"])) + 70] ^= 1
    path.write_bytes(data)
    disk.open()
    assert everything(disk.log()) == [(0, b"0")]
    assert put(disk.log(), build([b"next"])) == AppendResult(1, duplicate=False)
    disk.restart()
    assert everything(disk.log()) == [(0, b"0"), (1, b"next")]


def test_a_deleted_topic_is_gone_and_its_name_can_be_used_again(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    put(disk.log(), build([b"old"]))
    disk.topics.delete("t")
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    assert disk.log().end == 0
    disk.restart()
    assert disk.log().end == 0


def test_files_of_a_topic_whose_deletion_was_cut_short_are_removed(disk):
    leftover = disk.folder / "topics" / "gone" / "0"
    leftover.mkdir(parents=True)
    (leftover / f"{0:020d}.log").write_bytes(build([b"old"]))
    disk.restart()
    assert disk.topics.get("gone") is None
    assert not leftover.exists()


def test_a_topic_that_could_not_be_saved_does_not_exist(disk):
    blocked = disk.folder / "topics.json.new"
    blocked.mkdir()
    with pytest.raises(OSError, match="directory"):
        disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    assert disk.topics.get("t") is None
    blocked.rmdir()
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    blocked.mkdir()
    for change in (
        lambda: disk.topics.grow("t", 2, now_ms=NOW_MS, validate_only=False),
        lambda: disk.topics.configure("t", {"retention.ms": "1"}, validate_only=False),
        lambda: disk.topics.delete("t"),
    ):
        with pytest.raises(OSError, match="directory"):
            change()
    topic = disk.topics.existing("t")
    assert (len(topic.partitions), dict(topic.config.given)) == (1, {})
    blocked.rmdir()


def test_a_segment_that_could_not_be_begun_leaves_the_log_as_it_was(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    put(disk.log(), build([b"a"]))
    folder = disk.files()[0].parent
    blocked = folder / f"{1:020d}.log"
    blocked.mkdir()
    with pytest.raises(OSError, match="directory"):
        disk.log().begin_segment(NOW_MS)
    blocked.rmdir()
    assert put(disk.log(), build([b"b"])) == AppendResult(1, duplicate=False)
    disk.restart()
    assert everything(disk.log()) == [(0, b"a"), (1, b"b")]


def test_committed_offsets_survive_and_the_last_one_counts(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    disk.offsets.commit("g", TopicPartition("t", 0), CommittedOffset(5, -1, "first"))
    disk.offsets.commit("g", TopicPartition("t", 0), CommittedOffset(7, 0, "last ü"))
    disk.offsets.commit("g", TopicPartition("gone", 0), CommittedOffset(1, -1, ""))
    disk.offsets.forget_topic("gone")
    disk.restart()
    assert disk.offsets.of("g") == {TopicPartition("t", 0): CommittedOffset(7, 0, "last ü")}


def test_a_kill_in_the_deletion_of_a_topic_leaves_none_of_its_offsets(disk):
    for topic in ("t", "gone"):
        disk.topics.create(topic, 1, {}, now_ms=NOW_MS)
        disk.offsets.commit("g", TopicPartition(topic, 0), CommittedOffset(5, -1, ""))
    disk.topics.delete("gone")
    disk.restart()
    disk.topics.create("gone", 1, {}, now_ms=NOW_MS)
    assert disk.offsets.of("g") == {TopicPartition("t", 0): CommittedOffset(5, -1, "")}
    disk.restart()
    assert disk.offsets.of("g") == {TopicPartition("t", 0): CommittedOffset(5, -1, "")}


def test_a_torn_line_of_offsets_is_ignored(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    disk.offsets.commit("g", TopicPartition("t", 0), CommittedOffset(5, -1, ""))
    disk.close()
    path = disk.folder / "offsets.jsonl"
    path.write_bytes(path.read_bytes() + b'["g","t",0,9')
    disk.open()
    assert disk.offsets.of("g") == {TopicPartition("t", 0): CommittedOffset(5, -1, "")}
    disk.offsets.commit("g", TopicPartition("t", 0), CommittedOffset(6, -1, ""))
    disk.restart()
    assert disk.offsets.of("g") == {TopicPartition("t", 0): CommittedOffset(6, -1, "")}


def test_the_offsets_file_is_written_anew_before_it_grows_without_bound(tmp_path):
    journal = OffsetJournal(tmp_path / "offsets.jsonl")
    offsets = CommittedOffsets(journal)
    journal.load(offsets)
    for number in range(STALE_LINES + 20):
        offsets.commit("g", TopicPartition("t", number % 3), CommittedOffset(number, -1, ""))
    journal.close()
    lines = (tmp_path / "offsets.jsonl").read_bytes().splitlines()
    assert len(lines) < 30
    assert orjson.loads(lines[-1]) == ["g", "t", (STALE_LINES + 19) % 3, STALE_LINES + 19, -1, ""]


def test_stable_groups_survive_and_unreadable_ones_are_left_out(disk, caplog):
    join = JoinRequest(
        member_id="c-1", instance_id="one", client_id="c", client_host="h", session_ms=10_000, rebalance_ms=10_000,
        protocol_type="consumer", protocols=(AssignmentProtocol("range", b"\x00\xff"),), id_required=True,
    )  # fmt: skip
    kept = {"g ü": StableGroup(generation=3, protocol="range", leader="c-1", members=((join, b"\x80"),))}
    assert disk.storage.load_groups() == {}
    disk.storage.save_groups(kept)
    disk.restart()
    assert disk.storage.load_groups() == kept
    for broken in (b"{", b'{"format": 1, "groups": {"g": {}}}'):
        (disk.folder / "groups.json").write_bytes(broken)
        assert disk.storage.load_groups() == {}
    assert len(caplog.messages) == 2


def test_two_brokers_do_not_share_a_directory(disk):
    with pytest.raises(BadSetting, match="another broker is using it"):
        Storage(disk.folder)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 99, "topics": {}}', b'{"topics": {}}'])
def test_a_directory_that_is_not_ours_is_refused_by_name(tmp_path, content):
    (tmp_path / "topics.json").write_bytes(content)
    storage = Storage(tmp_path)
    with pytest.raises(BadSetting, match=r"topics\.json"):
        storage.load(Topics(TopicConfig(), storage), CommittedOffsets(), NOW_MS)
    storage.close()


def test_a_list_of_topics_that_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / "topics.json").mkdir()
    storage = Storage(tmp_path)
    with pytest.raises(BadSetting, match=r"cannot be used: .*topics\.json.*; repair it or name another"):
        storage.load(Topics(TopicConfig(), storage), CommittedOffsets(), NOW_MS)
    storage.close()


def test_a_data_directory_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadSetting, match="cannot be used"):
        Storage(tmp_path / "file")


def test_commits_beyond_an_end_that_a_crash_lost_are_lowered(disk):
    disk.topics.create("t", 1, {}, now_ms=NOW_MS)
    for number in range(4):
        put(disk.log(), build([b"%d" % number]))
    disk.offsets.commit("g", TopicPartition("t", 0), CommittedOffset(4, -1, "note"))
    (path,) = disk.files()
    disk.close()
    (disk.folder / "lock").write_text("the boot before")
    os.truncate(path, path.stat().st_size // 2)
    disk.open()
    assert disk.log().end == 2
    assert disk.offsets.of("g") == {TopicPartition("t", 0): CommittedOffset(2, -1, "note")}
