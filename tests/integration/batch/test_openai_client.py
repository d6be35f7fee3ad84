"""Test the official ``openai`` client against the edge and the batch service: files, batches and wrong requests."""

import asyncio
import hashlib
import json

import openai
import pytest

from tests.integration.batch.lab import line, lines, rows
from tests.support.waiting import until


@pytest.fixture
async def edge(lab, tmp_path):
    """Start the services, and yield a function that returns an OpenAI client with the API key of a tenant."""
    await lab.tree()
    keys = tmp_path / "keys.json"
    hashes = {hashlib.sha256(name.encode()).hexdigest(): name for name in ("acme", "other")}
    keys.write_text(json.dumps({"keys": hashes}))
    process = lab.start(
        "services.edge", **lab.where, RAILBUS_EDGE_PORT="0", RAILBUS_API_KEYS_FILE=str(keys),
        RAILBUS_BATCH_FILE_MB="1", RAILBUS_BATCH_TENANT_FILES="6", RAILBUS_BATCH_TENANT_JOBS="2",
    )  # fmt: skip
    url = (await process.ready()).split()[-1]
    clients = []

    def client(name="acme"):
        clients.append(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=name, max_retries=0))
        return clients[-1]

    yield client
    for each in clients:
        await each.close()


async def upload(client, content: bytes):
    return await client.files.create(file=("lines.jsonl", content), purpose="batch")


async def submit(client, file, window="24h", **given):
    return await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window=window, **given
    )


async def ended(client, batch):
    async def look():
        found = await client.batches.retrieve(batch.id)
        return found if found.status in {"completed", "failed", "expired", "cancelled"} else None

    return await until(look, "the batch ends", within_s=90, every_s=0.1)


async def content(client, file_id: str) -> bytes:
    return (await client.files.content(file_id)).content


async def test_the_life_of_a_batch(edge):
    client = edge()
    file = await upload(client, lines(20))
    assert (file.purpose, file.filename, file.status) == ("batch", "lines.jsonl", "processed")
    assert await content(client, file.id) == lines(20)
    batch = await submit(client, file, metadata={"for": "a test"})
    assert batch.status in {"validating", "in_progress"}
    assert (batch.input_file_id, batch.metadata, batch.completion_window) == (file.id, {"for": "a test"}, "24h")
    done = await ended(client, batch)
    assert (done.status, done.request_counts.total, done.request_counts.completed) == ("completed", 20, 20)
    assert done.error_file_id is None
    assert done.created_at <= done.in_progress_at <= done.completed_at <= done.expires_at
    found = rows(await content(client, done.output_file_id))
    assert [row["custom_id"] for row in found] == [f"id-{n}" for n in range(20)]
    assert all(row["response"]["status_code"] == 200 for row in found)
    assert [each.id async for each in client.batches.list()] == [batch.id]
    assert {each.id async for each in client.files.list()} == {file.id, done.output_file_id}
    assert [each.id async for each in client.files.list(purpose="batch")] == [file.id]
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)


async def test_what_one_tenant_has_another_does_not_see(edge):
    client, other = edge(), edge("other")
    file = await upload(client, lines(2))
    batch = await submit(client, file)
    await ended(client, batch)
    for ask in (
        other.files.retrieve(file.id), other.files.content(file.id), other.files.delete(file.id),
        other.batches.retrieve(batch.id), other.batches.cancel(batch.id), submit(other, file),
    ):  # fmt: skip
        with pytest.raises(openai.NotFoundError):
            await ask
    assert [each async for each in other.files.list()] == []
    assert [each async for each in other.batches.list()] == []
    with pytest.raises(openai.AuthenticationError):
        await edge("nobody").files.list()


async def test_mistakes(edge):
    client = edge()
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.batches.create(
            input_file_id="file-unknown", endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert unknown.value.code == "file_not_found"
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve("batch_unknown")
    with pytest.raises(openai.NotFoundError):
        await client.files.content("file-..%2f..%2fetc")
    with pytest.raises(openai.BadRequestError) as purpose:
        await client.files.create(file=("a.jsonl", b"{}"), purpose="assistants")
    assert purpose.value.param == "purpose"
    with pytest.raises(openai.APIStatusError) as large:
        await upload(client, b"x" * 1_100_000)
    assert large.value.status_code == 413
    file = await upload(client, lines(1))
    for given, param in (
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
    ):
        asked = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"} | given
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.batches.create(**asked)
        assert wrong.value.param == param


async def test_a_bad_line_fails_the_batch_with_its_number(edge):
    client = edge()
    batch = await submit(client, await upload(client, line("a", "One?") + b"no json\n" + line("a", "Two?", n=2)))
    done = await ended(client, batch)
    assert done.status == "failed"
    assert [(error.code, error.line) for error in done.errors.data] == [
        ("invalid_json_line", 2), ("unsupported_parameter", 3),
    ]  # fmt: skip
    assert done.output_file_id is None
    twice = await ended(client, await submit(client, await upload(client, line("a", "One?") + line("a", "Two?"))))
    assert [(error.code, error.line) for error in twice.errors.data] == [("duplicate_custom_id", 2)]


async def test_a_running_batch_is_cancelled(edge):
    client = edge()
    file = await upload(client, line("done", "One?") + line("mute", "Never?", model="simulated-mute"))
    batch = await submit(client, file)

    async def one_is_done():
        return (await client.batches.retrieve(batch.id)).request_counts.completed == 1

    await until(one_is_done, "one line is done", every_s=0.1)
    with pytest.raises(openai.ConflictError):
        await client.files.delete(file.id)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    done = await ended(client, batch)
    assert done.status == "cancelled"
    assert done.cancelling_at <= done.cancelled_at
    assert [row["custom_id"] for row in rows(await content(client, done.output_file_id))] == ["done"]
    assert rows(await content(client, done.error_file_id))[0]["error"]["code"] == "batch_cancelled"
    with pytest.raises(openai.ConflictError):
        await client.batches.cancel(batch.id)


async def test_a_batch_whose_window_is_over_expires(edge):
    client = edge()
    file = await upload(client, line("mute", "Never?", model="simulated-mute"))
    done = await ended(client, await submit(client, file, window="2s"))
    assert (done.status, done.output_file_id) == ("expired", None)
    assert rows(await content(client, done.error_file_id))[0]["error"]["code"] == "batch_expired"


async def test_a_tenant_has_so_many_files_and_batches(edge):
    client = edge()
    file = await upload(client, line("mute", "Never?", model="simulated-mute"))
    for _ in range(2):
        await submit(client, file)
    with pytest.raises(openai.RateLimitError) as batches:
        await submit(client, file)
    assert batches.value.code == "too_many_batches"
    for _ in range(5):
        await upload(client, lines(1))
    with pytest.raises(openai.RateLimitError) as files:
        await asyncio.gather(upload(client, lines(1)), upload(client, lines(1)))
    assert files.value.code == "too_many_files"
    pages = [each.id async for each in client.files.list(limit=2)]
    assert len(pages) == len(set(pages)) == 6
