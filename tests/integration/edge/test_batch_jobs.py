"""Test uploads of files and the creation of batch jobs at an edge, while no batch service runs."""

import asyncio
import os
import threading

import aiohttp
import pytest


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
