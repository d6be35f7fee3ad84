"""A broker's data directory in tests. A test can close it properly, or leave it as a killed broker does."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.broker.groups.committed_offsets import CommittedOffsets
from services.broker.storage.data_directory import Storage
from services.broker.storage.partition_log import PartitionLog
from services.broker.storage.topic_config import SMALLEST_SEGMENT_BYTES, TopicConfig
from services.broker.storage.topics import Topics
from tests.unit.broker.batches import NOW_MS, build, records

KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
SMALL = {"retention.ms": "-1", "retention.bytes": str(8 * SMALLEST_SEGMENT_BYTES)}


class Disk:
    """A broker's data directory with one topic `t`."""

    def __init__(self, folder: Path, config: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.open()
        if self.topics.get("t") is None:
            self.topics.create("t", 1, KEEP_ALL if config is None else config, now_ms=NOW_MS)

    def open(self) -> None:
        self.storage = Storage(self.folder, tail_bytes=0)  # each partition keeps the minimum in memory
        self.topics = Topics(TopicConfig(), self.storage)
        self.storage.load(self.topics, CommittedOffsets(self.storage), NOW_MS)

    def close(self) -> None:
        self.storage.close()

    def kill(self) -> None:
        """Close the file descriptors, as the kernel does for a killed process, and leave the files as they are."""
        for files in self.storage._partitions.values():
            files.close()
        self.storage._opened.close_all()
        os.close(self.storage._journal._file)
        os.close(self.storage._lock)

    @property
    def log(self) -> PartitionLog:
        return self.topics.existing("t").partitions[0]

    @property
    def partition(self) -> Path:
        return self.folder / "topics" / "t" / "0"

    def files(self, suffix: str = ".log") -> list[Path]:
        return sorted(self.partition.glob(f"*{suffix}"))


def put(log: PartitionLog, batch: bytes, now_ms: int = NOW_MS):
    return log.produce(batch, 7, now_ms)


def fill(log: PartitionLog, count: int, size: int = 1000) -> list[tuple[int, bytes]]:
    """Append `count` batches of one record each. Return (offset, value) of each record."""
    first = log.end
    values = [b"%d:" % (first + number) + b"x" * size for number in range(count)]
    for value in values:
        put(log, build([value]))
    return [(first + number, value) for number, value in enumerate(values)]


def everything(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    found, at = [], log.start
    while at < log.end:
        found += records(log.read(at, max_bytes, at_least_one=True))
        at = found[-1][0] + 1
    return found


@contextmanager
def disk_that_is_full(file_bytes: int) -> Iterator[None]:
    """Within the `with` block, let no file grow beyond `file_bytes` bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
