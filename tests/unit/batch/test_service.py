"""Tests of a batch service whose disk fails for a while, or which loses its job to another batch service."""

import asyncio
import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from schemas.batches import BatchCreated, BatchFinished
from services.batch import disk_retries
from services.batch.job import FinishJob, RecordResult
from services.batch.part_file import JobFiles
from services.batch.service import LOST_S, BatchService
from services.batch.settings import Settings
from services.bus import BusSettings
from services.jobs.lines import BadLine
from services.jobs.prepare import prepare
from services.jobs.result_lines import LineError
from services.jobs.results import ResultFiles
from tests.unit.batch.world import BATCH_ID

FILE_ID = "file-a"
POSITIONS = {"railbus.streams": [0] * 6, "railbus.requests.batch": [0] * 6}
ABOUT = {"batch_id": BATCH_ID, "tenant": "t", "at": 0, "source": "test"}


@pytest.fixture
def service(tmp_path):
    """Yield a batch service that runs one job, without a broker."""
    found = BatchService(Settings(batch_dir=tmp_path), BusSettings(bootstrap="127.0.0.1:1"), lambda: None)
    with found._store.writing(FILE_ID, "t", "lines.jsonl", "batch", 0) as file:
        file.write(b'{"custom_id":"a","body":{"messages":[{"role":"user","content":"Why?"}]}}\n')
    plan = prepare(found._store, BATCH_ID, FILE_ID, refuse_bad=False)
    found._reader.jobs.feed(BatchCreated(**ABOUT, input_file=FILE_ID), 0)
    found._files[BATCH_ID] = JobFiles(found._store, BATCH_ID, FILE_ID, plan, "part-1")
    [found.checkpoint] = found._core.begin(found._reader.jobs.get(BATCH_ID), 1, 0, "part-1", POSITIONS)
    yield found
    found._drop(BATCH_ID)


async def test_a_lost_job_is_not_tried_again(service, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("append", "sync"):
        monkeypatch.setattr(JobFiles, name, full)
    result = RecordResult(BATCH_ID, 0, 1, LineError(code="c", message="m"))
    for effect in (result, service.checkpoint):
        work = asyncio.create_task(service._perform(effect))
        await asyncio.sleep(0.1)
        assert not work.done()
        files = service._files.pop(BATCH_ID)
        await asyncio.wait_for(work, 5)
        service._files[BATCH_ID] = files


async def test_the_end_of_a_job_that_another_service_has_cleaned_is_left(service, monkeypatch):
    monkeypatch.setattr(service._reader, "read_to_end", nothing)
    service._reader.jobs.feed(service.checkpoint.progress, 0)
    service._store.clean(BATCH_ID)
    work = asyncio.create_task(service._perform(FinishJob(BATCH_ID, "completed")))
    await asyncio.sleep(0.1)
    service._drop(BATCH_ID)
    await asyncio.wait_for(work, 5)


async def test_a_job_may_be_lost_before_its_file_is_synced(service):
    busy = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        pool.submit(busy.wait)
        work = asyncio.create_task(service._perform(service.checkpoint))
        await asyncio.sleep(0.1)
        service._drop(BATCH_ID)
        busy.set()
        await asyncio.wait_for(work, 5)


class Went(Exception):
    """The service called the mock of ``full_once`` a second time, so it tried again after the disk was full."""


def full_once(then, number=errno.ENOSPC):
    left = [OSError(number, "the disk cannot be used")]

    def work(*_, **__):
        raise left.pop() if left else then

    return work


async def nothing(*_, **__):
    return {}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ESTALE])
async def test_a_full_disk_does_not_fail_a_new_job(service, monkeypatch, number):
    service._store.clean(BATCH_ID)
    monkeypatch.setattr("services.batch.service.prepare", full_once(Went(), number))
    with pytest.raises(Went):
        await service._begin(service._reader.jobs.get(BATCH_ID))


async def test_a_full_disk_does_not_end_a_service_that_takes_a_job(service, monkeypatch):
    monkeypatch.setattr("services.batch.service.JobFiles", full_once(Went()))
    monkeypatch.setattr(service._reader, "read_to_end", nothing)
    monkeypatch.setattr(service, "_follow", nothing)
    with pytest.raises(Went):
        await service._begin(service._reader.jobs.get(BATCH_ID))


async def test_a_full_disk_that_refuses_the_folder_of_a_new_job_does_not_fail_it(service, monkeypatch):
    make, left = service._store.work_folder, [OSError(errno.ENOSPC, "the disk is full")]

    def work_folder(batch_id):
        if left:
            raise left.pop()
        return make(batch_id)

    service._store.clean(BATCH_ID)
    monkeypatch.setattr(service._store, "work_folder", work_folder)
    assert (await service._prepare(BATCH_ID, FILE_ID, refuse_bad=False)).good == 1


async def test_a_disk_that_stays_unreadable_fails_the_job(monkeypatch):
    tries = []

    def read():
        tries.append(1)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_retries, "RETRY_S", (0,))
    with pytest.raises(OSError, match="Input/output error"):
        await disk_retries.repeat_in_thread(read)
    assert len(tries) == disk_retries.BAD_DISK_TRIES


async def test_the_inputs_of_two_jobs_are_not_read_at_once(service, monkeypatch):
    reading, most = 0, 0

    def read(*_, **__):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.05)
        reading -= 1

    monkeypatch.setattr("services.batch.service.prepare", read)
    service._store.clean(BATCH_ID)
    await asyncio.gather(*(service._prepare(BATCH_ID, FILE_ID, refuse_bad=False) for _ in range(3)))
    assert most == 1


async def test_a_line_that_an_older_version_accepted_fails_alone(service, monkeypatch):
    def refuse(*_, **__):
        raise BadLine("unsupported_parameter", "verbosity is not supported.")

    service._core.confirmed(BATCH_ID)
    service._core.caught_up(BATCH_ID, 0)
    [submit] = service._core.step(1, POSITIONS)
    monkeypatch.setattr(JobFiles, "request", refuse)
    await service._perform(submit)
    [result] = service._effects
    assert result.result == LineError(code="rejected", message="verbosity is not supported.")


async def test_a_job_that_was_lost_while_its_results_were_written_is_not_ended(service, monkeypatch):
    sent = []

    async def send(_, event):
        sent.append(event)

    def write(*_, **__):
        service._drop(BATCH_ID)  # the event loop does this when it reads the new owner's progress event
        return ResultFiles(None, None, 0, 1)

    monkeypatch.setattr(service._reader, "read_to_end", nothing)
    monkeypatch.setattr(service._producer, "send", send)
    monkeypatch.setattr("services.batch.service.write_results", write)
    service._reader.jobs.feed(service.checkpoint.progress, 0)
    await service._perform(FinishJob(BATCH_ID, "completed"))
    assert not sent
    assert service._store.work_folder(BATCH_ID).joinpath("index").exists()


async def test_a_job_that_its_former_owner_has_finished_is_dropped(service):
    service._reader.jobs.feed(service.checkpoint.progress, 0)
    about = {**ABOUT, "source": "batch/former"}
    service._on_change(service._reader.jobs.feed(BatchFinished(**about, outcome="completed"), 0))
    assert service._core.job(BATCH_ID) is None
    assert not service._files


async def test_a_job_whose_new_owner_died_is_taken_back(service):
    state = service._reader.jobs.get(BATCH_ID)
    service._lost[BATCH_ID] = state.progress, 0
    assert service._is_lost(state, int(LOST_S * 1_000_000) - 1)
    moved = service._reader.jobs.feed(service.checkpoint.progress, 0)
    later_us = int(LOST_S * 1_000_000)
    assert service._is_lost(moved, later_us)
    assert service._is_lost(moved, 2 * later_us - 1)
    assert not service._is_lost(moved, 2 * later_us)
    assert BATCH_ID not in service._lost


async def test_an_input_that_is_gone_at_a_takeover_fails_its_job_alone(service, monkeypatch):
    sent = []

    async def send(_, event):
        sent.append(event)

    monkeypatch.setattr(service._reader, "read_to_end", nothing)
    monkeypatch.setattr(service, "_follow", nothing)
    monkeypatch.setattr(service._producer, "send", send)
    service._store.delete(FILE_ID)
    await service._begin(service._reader.jobs.get(BATCH_ID))
    [end] = sent
    assert (end.outcome, end.faults[0].code) == ("failed", "input_file_unreadable")
