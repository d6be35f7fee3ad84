"""Committed offsets on disk, one JSON line per commit.

A commit replaces the earlier commits of the same group and partition. When the file has many lines, it is rewritten
with only the newest commit of each group and partition.
"""

import logging
import os
from pathlib import Path

import orjson

from services.broker.groups.committed_offsets import CommittedOffset, CommittedOffsets, TopicPartition

logger = logging.getLogger("railbus.broker")

STALE_LINES = 10_000  # the file is rewritten when it has more lines than this plus ten per committed offset


class OffsetJournal:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = CommittedOffsets()
        self._lines = self._rewrite_at = 0
        self._file: int | None = None

    def load(self, offsets: CommittedOffsets) -> None:
        """Load the stored offsets. Lines that cannot be decoded are ignored."""
        self._offsets = offsets
        if self._path.exists():
            for line in self._path.read_bytes().splitlines():
                _replay(line, offsets)
        self._rewrite()

    def committed(self, group: str, place: TopicPartition, committed: CommittedOffset) -> None:
        self._write(_line(group, place, committed))

    def forgotten(self, group: str, place: TopicPartition) -> None:
        self._write(_line(group, place, None))

    def close(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._lines > self._rewrite_at:
            self._rewrite()
        assert self._file is not None  # noqa: S101 - loaded before used
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            # The next commit would continue an incomplete line, and a restart would ignore both.
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise
        self._lines += 1

    def _rewrite(self) -> None:
        self.close()
        lines = [
            _line(group, place, committed)
            for group in self._offsets.groups()
            for place, committed in self._offsets.of(group).items()
        ]
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(b"".join(lines))
        fresh.replace(self._path)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self._lines = len(lines)
        self._rewrite_at = STALE_LINES + 10 * len(lines)


def _line(group: str, place: TopicPartition, committed: CommittedOffset | None) -> bytes:
    return orjson.dumps([group, *place, *(committed or ())], option=orjson.OPT_APPEND_NEWLINE)


def _replay(line: bytes, offsets: CommittedOffsets) -> None:
    try:
        group, topic, partition, *rest = orjson.loads(line)
        committed = CommittedOffset(*rest) if rest else None
    except (ValueError, TypeError):
        logger.warning("a line of the offsets file is incomplete and ignored")
        return
    if committed is not None:
        offsets.adopt(group, TopicPartition(topic, partition), committed)
    else:
        offsets.drop(group, TopicPartition(topic, partition))
