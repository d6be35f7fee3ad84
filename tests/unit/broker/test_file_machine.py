"""Test that a log in files behaves like a list of batches, however the broker ended."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.broker.storage.file_segment import MIN_TAIL_BYTES
from services.broker.storage.partition_log import TimestampAndOffset
from tests.support.examples import examples
from tests.unit.broker.batches import NOW_MS, build, records, split
from tests.unit.broker.disk import SMALL, Disk, put


class FilesAreAListOfBatches(RuleBasedStateMachine):
    """A Hypothesis state machine that appends to a log, retries, reads, searches and restarts in any order.

    It also lets retention delete batches. It compares the log with a list of batches.
    """

    @initialize(append_time=st.booleans())
    def begin(self, append_time: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="railbus-files-"))
        kind = "LogAppendTime" if append_time else "CreateTime"
        self.disk = Disk(self.folder / "data", {**SMALL, "message.timestamp.type": kind})
        self.append_time = append_time
        self.batches: list[tuple[int, list[bytes], list[int]]] = []  # first offset, values, times
        self.last: tuple[bytes, int] | None = None
        self.sequence = 0
        self.clock_ms = NOW_MS

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.close()
            shutil.rmtree(self.folder)

    @property
    def end(self) -> int:
        return self.batches[-1][0] + len(self.batches[-1][1]) if self.batches else 0

    @rule(late_ms=st.lists(st.integers(0, 50), min_size=1, max_size=4), size=st.sampled_from([1, 700, 9_000, 30_000]))
    def append(self, late_ms: list[int], size: int) -> None:
        values = [b"%d" % self.end + b"x" * size for _ in late_ms]
        times_ms = [NOW_MS + each for each in late_ms]
        self.clock_ms += 1
        batch = build(values, times_ms=times_ms, producer=(7, 0, self.sequence))
        assert put(self.disk.log, batch, self.clock_ms).offset == self.end
        self.sequence += len(values)
        self.last = batch, self.end
        self.batches.append((self.end, values, [self.clock_ms] * len(values) if self.append_time else times_ms))

    @rule(count=st.integers(1, 40), size=st.sampled_from([20, 3_000]))
    def append_many(self, count: int, size: int) -> None:
        for _ in range(count):
            self.append([3], size)

    @precondition(lambda self: self.last is not None)
    @rule()
    def retry(self) -> None:
        batch, offset = self.last
        appended = put(self.disk.log, batch, self.clock_ms)
        assert (appended.offset, appended.duplicate) == (offset, True)

    @rule()
    def drop_what_is_too_much(self) -> None:
        self.disk.log.expire(self.clock_ms)

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
        self.disk.kill()
        for path in [*self.disk.files(".index"), self.disk.partition / "state.json"]:
            path.unlink(missing_ok=True)
        self.disk.open()

    @rule(index=st.integers(0, 100), garbage=st.binary(max_size=60))
    def damage_an_index(self, index: int, garbage: bytes) -> None:
        self.disk.kill()
        found = self.disk.files(".index")
        if found:
            found[index % len(found)].write_bytes(garbage)
        self.disk.open()

    @precondition(lambda self: len(self.batches) > 1)
    @rule(cut=st.integers(1, 60))
    def tear_the_last_write(self, cut: int) -> None:
        newest = self.disk.files()[-1]
        if newest.stat().st_size == 0 or self.disk.log.start == self.batches[-1][0]:
            return
        self.disk.kill()
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size - cut)
        self.disk.open()
        _, values, _ = self.batches.pop()
        assert self.disk.log.end == self.end
        # The lost batch is unknown now, so its retry would be appended as a new batch.
        self.sequence -= len(values)
        self.last = None

    @rule(
        back=st.integers(1, 30) | st.integers(1, 10_000),
        max_bytes=st.sampled_from([0, 100, 100_000, 1 << 20]) | st.integers(0, 30_000),
    )
    def read(self, back: int, max_bytes: int) -> None:
        log = self.disk.log
        if log.start == log.end:
            return
        offset = max(log.start, log.end - back)
        data = log.read(offset, max_bytes, at_least_one=True)
        assert len(data) <= max_bytes or len(split(data)) == 1
        assert log.available(offset, max_bytes) >= min(len(data), max_bytes)
        wanted = [
            (base + index, value)
            for base, values, _ in self.batches
            if base + len(values) > offset
            for index, value in enumerate(values)
        ]
        found = records(data)
        assert found == wanted[: len(found)]
        assert found
        small = log.read(offset, max_bytes, at_least_one=False)
        assert small == (data if len(data) <= max_bytes else b"")

    @rule(late_ms=st.integers(-1, 130))
    def search_by_time(self, late_ms: int) -> None:
        at_ms = NOW_MS + late_ms
        wanted = next(
            (
                TimestampAndOffset(base + index, time_ms)
                for base, _, times_ms in self.batches
                for index, time_ms in enumerate(times_ms)
                if base + index >= self.disk.log.start and time_ms >= at_ms
            ),
            None,
        )
        assert self.disk.log.find_time(at_ms) == wanted

    @invariant()
    def everything_that_retention_left_is_there(self) -> None:
        if not hasattr(self, "disk"):
            return
        log = self.disk.log
        assert log.end == self.end
        assert log.start in {0, self.end, *(base for base, *_ in self.batches)}
        assert log.size == sum(path.stat().st_size for path in self.disk.files())
        assert log.memory_bytes < 3 * MIN_TAIL_BYTES + 2 * 130_000


FilesAreAListOfBatches.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
test_files_are_a_list_of_batches = FilesAreAListOfBatches.TestCase
