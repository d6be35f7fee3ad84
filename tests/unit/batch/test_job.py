"""Tests of a job's totals, and of the requests that are made from the job's lines."""

import pytest

from schemas.batches import BatchCreated, BatchProgress, ResultPart
from schemas.requests import Delivery
from schemas.stream import Usage
from services.batch.job import JobRun
from services.batch.part_file import JobFiles
from services.batch.settings import Settings
from services.jobs.ids import line_request_id
from services.jobs.prepare import prepare
from services.jobs.result_lines import LineAnswer, LineError
from services.jobs.store import FolderStore
from tests.unit.batch.world import BATCH_ID

FILE_ID = "file-a"
ABOUT = {"batch_id": BATCH_ID, "tenant": "acme", "at": 0, "source": "test"}
USAGE = Usage(prompt_tokens=5, cached_tokens=3, completion_tokens=7)


def job(*, good=4, bad=2):
    return JobRun(created=BatchCreated(**ABOUT, input_file=FILE_ID), good=good, bad=bad, window=1)


def test_invalid_lines_are_failed_from_the_start_and_only_once():
    first = job()
    assert (first.totals.lines, first.totals.failed) == (6, 2)
    first.count(LineError(code="c", message="m"))
    for _ in range(2):
        first.count(LineAnswer(text="", model="m", finish_reason="stop", usage=USAGE))
    first.totals_retried = 9
    second = job()
    second.restore(BatchProgress(**ABOUT, epoch=1, totals=first.totals))
    for totals in (first.totals, second.totals):
        assert (totals.lines, totals.completed, totals.failed, totals.retried) == (6, 2, 3, 9)
        assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (10, 6, 14)


@pytest.fixture
def files(tmp_path):
    store = FolderStore(tmp_path)
    with store.writing(FILE_ID, "acme", "lines.jsonl", "batch", 0) as file:
        file.write(b'{"custom_id":"a","body":{"model":"m","messages":[{"role":"user","content":"Why?"}],"seed":4}}\n')
    found = JobFiles(store, BATCH_ID, FILE_ID, prepare(store, BATCH_ID, FILE_ID, refuse_bad=False), "part-2")
    yield found
    found.close()


@pytest.mark.parametrize(("check", "mode"), [("on", "gated"), ("off", "optimistic")])
def test_a_line_is_a_batch_request_whose_text_waits_for_the_check(files, check, mode):
    deadlines = Settings(batch_total_ms=70_000, batch_stall_ms=20_000).deadlines
    request = files.request(0, 2, tenant="acme", at_us=8, source="s", deadlines=deadlines, check=check)
    assert request.request_id == line_request_id(BATCH_ID, 0, 2)
    assert (request.tenant, request.model, request.sampling.seed) == ("acme", "m", 4)
    assert (request.lane, request.fallback, request.delivery) == ("batch", "off", Delivery(mode=mode))
    assert (deadlines.verdict_ms, deadlines.ttft_ms, deadlines.stall_ms, deadlines.total_ms) == (
        70_000, 70_000, 20_000, 70_000
    )  # fmt: skip


def test_a_request_is_not_given_up_before_its_deadline():
    assert Settings().batch_line_timeout_ms > Settings().batch_total_ms


def test_progress_has_the_length_of_the_newest_part_only(files):
    earlier = ResultPart(name="part-1", length=11)
    progress = BatchProgress(**ABOUT, epoch=2, parts=(earlier, ResultPart(name="part-2", length=0)))
    files.length = 5
    assert files.noted(progress).parts == (earlier, ResultPart(name="part-2", length=5))
