"""Test uploads of files and the creation of batch jobs at an edge, while no batch service runs."""

import asyncio
import os
import threading

import aiohttp
import pytest

from services.bus import BusSettings
from services.edge.batches import job_service
from services.edge.batches.job_service import JobService
from services.edge.errors import ApiError
from services.edge.http import batch_endpoint
from services.jobs.job_state import Jobs


async def uploaded(lab, url, headers):
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", b'{"custom_id": "a"}\n', filename="lines.jsonl")
    async with lab.http.post(f"{url}/v1/files", data=form, headers=headers) as response:
        assert response.status == 200
        return (await response.json())["id"]


async def test_jobs_that_are_created_at_once_are_limited_too(lab, tmp_path, keys_file):
    url = await lab.edge(batch_dir=tmp_path, batch_tenant_jobs=2, api_keys_file=keys_file)
    headers = {"Authorization": "Bearer k-a"}
    file_id = await uploaded(lab, url, headers)
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

    async def status():
        async with lab.http.post(f"{url}/v1/batches", json=body, headers=headers) as response:
            return response.status

    statuses = await asyncio.gather(*(status() for _ in range(6)))
    assert sorted(statuses) == [200] * 2 + [429] * 4
    assert lab.edges[url]._jobs._new == {}


class SilentLog:
    """A producer and a reader of jobs. Nothing is acknowledged before ``acknowledges`` is set."""

    def __init__(self):
        self.jobs, self.sent = Jobs(), []
        self.acknowledges, self.caught_up = asyncio.Event(), asyncio.Event()
        self.caught_up.set()

    async def send(self, topic, event):
        self.sent.append(event)
        await self.acknowledges.wait()
        self.jobs.feed(event, 1)

    async def read_to_end(self):
        pass


async def test_a_retry_waits_for_the_batch_that_is_not_on_the_log_yet(tmp_path, monkeypatch):
    log = SilentLog()
    service = JobService(
        tmp_path, BusSettings(), log, "edge/1", file_bytes=1_000, tenant_files=9, tenant_jobs=2,
    )  # fmt: skip
    service._reader = log
    service._reading.set()

    async def lines():
        yield b'{"custom_id": "a"}\n'

    async def create(window):
        body = {"input_file_id": file.file_id, "endpoint": "/v1/chat/completions", "completion_window": window}
        return await service.create("acme", body)

    file = await service.upload("acme", "lines.jsonl", lines())
    with monkeypatch.context() as patched:
        patched.setattr(job_service, "ANSWER_S", 0.05)
        for window, code in (("24h", "log_unavailable"), ("24h", "log_unavailable"), ("1h", "log_unavailable"),
                             ("2h", "too_many_batches")):  # fmt: skip
            with pytest.raises(ApiError) as refused:
                await create(window)
            assert refused.value.code == code
    with pytest.raises(ApiError) as in_use:
        await service.delete("acme", file.file_id)
    assert in_use.value.code == "file_in_use"
    retries = [asyncio.create_task(create(window)) for window in ("1h", "24h")]
    await asyncio.sleep(0)
    log.acknowledges.set()
    created = [job.created for job in await asyncio.gather(*retries)]
    assert created == log.sent[::-1]
    assert service._new == {}


async def test_no_job_is_created_for_a_file_that_is_deleted_meanwhile(lab, tmp_path):
    url = await lab.edge(batch_dir=tmp_path, batch_tenant_jobs=100)
    seen = set()
    for number in range(30):
        file_id = await uploaded(lab, url, {})
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

        async def status(request):
            async with request as response:
                return response.status

        create, delete = lab.http.post(f"{url}/v1/batches", json=body), lab.http.delete(f"{url}/v1/files/{file_id}")
        if number % 2:
            created, deleted = await asyncio.gather(status(create), status(delete))
        else:
            deleted, created = await asyncio.gather(status(delete), status(create))
        seen.add((created, deleted))
    assert seen <= {(200, 409), (404, 200)}
    assert lab.edges[url]._jobs._new == {}


async def test_the_event_loop_does_not_wait_for_the_disk(lab, tmp_path, monkeypatch):
    """Uploads are written to disk in a separate thread, so that a large upload does not delay any answer."""
    syncing, fsync = [], os.fsync

    def noted(file):
        syncing.append(threading.current_thread())
        fsync(file)

    url = await lab.edge(batch_dir=tmp_path)
    monkeypatch.setattr(os, "fsync", noted)
    file_id = await uploaded(lab, url, {})
    assert syncing
    assert threading.current_thread() not in syncing
    async with lab.http.get(f"{url}/v1/files/{file_id}/content") as response:
        assert await response.read() == b'{"custom_id": "a"}\n'


async def test_an_upload_is_not_late_while_the_edge_waits_for_its_disk(monkeypatch):
    class Connection:
        waits_for = None

        def wait(self, what):
            self.waits_for = what

        def busy(self):
            self.waits_for = None

    class Form:
        async def read_chunk(self, size):
            assert connection.waits_for == "body"
            return chunks.pop(0)

        async def next(self):
            assert connection.waits_for == "body"

    connection, form, chunks = Connection(), Form(), [b"one", b"two", b""]
    monkeypatch.setattr(batch_endpoint, "handler_of", lambda _: connection)
    async for _ in batch_endpoint._chunks(None, form, form):
        assert connection.waits_for is None
    assert chunks == []
    assert connection.waits_for is None


PART = b'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--xx\r\n'


@pytest.mark.parametrize(
    "form",
    [
        PART + b'{"custom_id": "a", "body": "a secret"}\r\n--xx--\r\n',
        PART + b'a: {"content": "a secret' + b"x" * 9_000 + b'"}\r\n\r\n--xx--\r\n',
        PART + b"a: a secret\r\n" * 200 + b"\r\n--xx--\r\n",
        b'--xx\r\nContent-Disposition: form-data; name="_charset_"\r\n\r\n' + b"a secret" * 5 + b"\r\n--xx--\r\n",
    ],
    ids=["no blank line", "long line", "many headers", "charset"],
)
async def test_a_malformed_form_is_the_clients_mistake(lab, tmp_path, caplog, form):
    """A malformed form gets status 400. No traceback is logged, because it could quote the uploaded file."""
    url = await lab.edge(batch_dir=tmp_path)
    headers = {"Content-Type": "multipart/form-data; boundary=xx"}
    async with lab.http.post(f"{url}/v1/files", data=form, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_body")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("end", [b"", b"\r\n--x"], ids=["no end", "half an end"])
async def test_a_form_that_is_cut_off_stores_no_part_of_the_file(lab, tmp_path, end):
    url = await lab.edge(batch_dir=tmp_path)
    headers = {"Content-Type": "multipart/form-data; boundary=xx"}
    form = PART + b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n{"custom_id": "a' + end
    async with lab.http.post(f"{url}/v1/files", data=form, headers=headers) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, "invalid_body")
    assert list((tmp_path / "files").iterdir()) == []


async def test_a_form_may_arrive_in_pieces(lab, tmp_path):
    url = await lab.edge(batch_dir=tmp_path)
    headers = {"Content-Type": "multipart/form-data; boundary=xx"}
    begin, end = PART.split(b"tch")

    async def pieces():
        yield begin
        await asyncio.sleep(0.2)  # the edge has read the first piece
        yield b"tch" + end + b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n--xx--\r\n'

    async with lab.http.post(f"{url}/v1/files", data=pieces(), headers=headers) as response:
        assert (response.status, (await response.json()).get("bytes")) == (200, 2)
