"""Tests of a batch service whose disk is full for a while, or which loses its job to another batch service."""

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from schemas.batches import BatchCreated
from services.batch.job import FinishJob, RecordResult
from services.batch.part_file import JobFiles
from services.batch.service import BatchService
from services.batch.settings import Settings
from services.bus import BusSettings
from services.jobs.prepare import prepare
from services.jobs.result_lines import LineError
from tests.unit.batch.world import BATCH_ID

FILE_ID = "file-a"
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
    positions = {"railbus.streams": [0] * 6, "railbus.requests.batch": [0] * 6}
    [found.checkpoint] = found._core.begin(found._reader.jobs.get(BATCH_ID), 1, 0, "part-1", positions)
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


def full_once(then):
    left = [OSError(errno.ENOSPC, "No space left on device")]

    def work(*_, **__):
        raise left.pop() if left else then

    return work


async def nothing(*_, **__):
    return {}


async def test_a_full_disk_does_not_fail_a_new_job(service, monkeypatch):
    monkeypatch.setattr("services.batch.service.prepare", full_once(Went()))
    with pytest.raises(Went):
        await service._begin(service._reader.jobs.get(BATCH_ID))


async def test_a_full_disk_does_not_end_a_service_that_takes_a_job(service, monkeypatch):
    monkeypatch.setattr("services.batch.service.JobFiles", full_once(Went()))
    monkeypatch.setattr(service._reader, "read_to_end", nothing)
    monkeypatch.setattr(service, "_follow", nothing)
    with pytest.raises(Went):
        await service._begin(service._reader.jobs.get(BATCH_ID))


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
