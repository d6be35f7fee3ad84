"""Test that the part file of a job is complete even if the disk was full for a while."""

import errno
import json
import resource
from contextlib import contextmanager
from functools import partial

import pytest

from schemas.stream import Usage
from services.batch.job import RecordResult
from services.batch.part_file import JobFiles
from services.jobs.prepare import prepare
from services.jobs.result_lines import LineAnswer
from services.jobs.results import part_records
from services.jobs.store import FolderStore
from tests.unit.batch.world import BATCH_ID

FILE_ID = "file-a"
COUNT = 6


@pytest.fixture
def files(tmp_path):
    store = FolderStore(tmp_path)
    with store.writing(FILE_ID, "acme", "lines.jsonl", "batch", 0) as file:
        for number in range(COUNT):
            file.write(b'{"custom_id":"%d","body":{"messages":[{"role":"user","content":"Why?"}]}}\n' % number)
    plan = prepare(store, BATCH_ID, FILE_ID, refuse_bad=False)
    found = JobFiles(store, BATCH_ID, FILE_ID, plan, "part-1")
    yield found
    found.close()


@contextmanager
def full_after(count: int):
    """Within the ``with`` block, let no file grow beyond ``count`` bytes, as on a full disk."""
    _, most = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def answered(place: int) -> RecordResult:
    answer = LineAnswer(text=f"{place}" * 20_000, model="m", finish_reason="stop", usage=Usage())
    return RecordResult(BATCH_ID, place, 1, answer)


def twice(work):
    """Call ``work``. If it fails because a file would exceed the size limit, call it again with a higher limit."""
    try:
        work()
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        with full_after(10**9):
            work()


@pytest.mark.parametrize("size", [0, 1, 8_192, 30_000, 50_000, 100_000])
def test_what_a_full_disk_cut_off_is_written_whole(files, tmp_path, size):
    with full_after(size):
        for place in range(COUNT):
            twice(partial(files.append, answered(place)))
        twice(files.sync)
    with (tmp_path / "jobs" / BATCH_ID / "part-1").open("rb") as file:
        found = [*part_records(file, files.length)]
    assert [place for place, *_ in found] == [*range(COUNT)]
    for place, is_answer, _, line in found:
        assert is_answer
        text = json.loads(line)["response"]["body"]["choices"][0]["message"]["content"]
        assert text == f"{place}" * 20_000
