"""Test that receipts on the log record what was sent on each connection, and why the connection ended."""

import asyncio
import hashlib
import time

import orjson
import pytest

from schemas.side_events import Attached
from services.stream import Screen, encode_op
from tests.integration.edge.lab import ASK, chunks
from tests.integration.edge.test_malformed_http import connection, post
from tests.support.edge_answers import plain_answer


def lines_of(events):
    screen = Screen(events[0].request_id)
    return [encode_op(op) for event in events for op in screen.feed(event)]


async def test_a_whole_answer(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        request = await lab.next_request()
        events = plain_answer(request.request_id, ["a", "b"])
        await lab.write(*events)
        data = await client.rest()
    receipt = await lab.detached(request.request_id)
    (attached,) = lab.receipts(Attached, request.request_id)
    assert attached.transport == "sse"
    assert attached.resumed_from is None
    assert attached.connection == receipt.connection
    assert receipt.reason == "complete"
    lines = lines_of(events)[:-1]  # begin, show, show, finish: the answer ends before the close
    assert receipt.ops == len(lines)
    assert receipt.ops_hash == hashlib.sha256(b"\n".join(lines) + b"\n").hexdigest()
    assert receipt.last == data.split(b"id: ")[-1].split(b"\n")[0].decode()
    assert receipt.first_text_ms > 0
    assert receipt.exposure_ms == 0


async def test_a_resumed_rest(lab):
    url = await lab.edge()
    request, data = await lab.ask(url, ("a", "b", "c"))
    after = data.split(b"id: ")[1].split(b"\n")[0].decode()
    async with lab.http.get(f"{url}/v1/requests/{request.request_id}/events?after={after}") as response:
        rest = chunks(await response.read())
    receipt = await lab.detached(request.request_id, 2)
    assert lab.receipts(Attached, request.request_id)[-1].resumed_from == after
    assert receipt.ops == len(rest) == 4
    lines = b"".join(encode_op(op) + b"\n" for op in rest)
    assert receipt.ops_hash == hashlib.sha256(lines).hexdigest()


async def test_a_client_that_disconnects(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("a"))
        await client.until(b'"a"')
    receipt = await lab.detached(writer.request_id)
    assert receipt.reason == "gone"
    assert receipt.ops == 2


async def test_a_client_that_disconnects_before_the_first_op(lab):
    url = await lab.edge()
    for stream in (True, False):
        asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", json=ASK | {"stream": stream}))
        request = await lab.next_request()
        asking.cancel()
        receipt = await lab.detached(request.request_id)
        assert (receipt.reason, receipt.ops) == ("gone", 0)


async def test_a_client_that_disconnects_behind_a_request_sent_ahead(lab):
    url = await lab.edge()
    for stream in (True, False):
        async with connection(url) as (_, writer):
            writer.write(post(orjson.dumps(ASK | {"stream": stream})) * 2)
            request = await lab.next_request()
        receipt = await lab.detached(request.request_id)
        assert (receipt.reason, receipt.ops) == ("gone", 0)


async def test_exposure_is_measured(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer(checked=True)
        await lab.write(
            writer.started(), writer.allowed(), writer.chunk("safe ", tokens=2), writer.cleared(final=False)
        )
        before_s = time.monotonic()
        await lab.write(writer.chunk("secret", tokens=3))
        await client.until(b"secret")
        await asyncio.sleep(0.05)
        await lab.write(writer.recall(5, 11, "stop"), writer.closed("recalled"))
        await client.rest()
        longest_ms = (time.monotonic() - before_s) * 1_000
    receipt = await lab.detached(writer.request_id)
    assert receipt.exposed_tokens == 3
    assert 50 <= receipt.exposure_ms <= longest_ms


async def test_another_edge_continues_the_stream_of_a_stopping_one(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("one "))
        await client.until(b"one")
        await lab.stop_edges()
        seen = await client.rest()
    assert chunks(seen)[-1]["error"]["code"] == "server_stopping"
    assert (await lab.detached(writer.request_id)).reason == "shutdown"
    other = await lab.edge()
    await lab.write(writer.chunk("two"), writer.finished(), writer.closed())
    async with lab.http.get(f"{other}/v1/chat/completions/{writer.request_id}?stream=false") as response:
        assert (await response.json())["choices"][0]["message"]["content"] == "one two"


@pytest.mark.usefixtures("patient_close")
async def test_a_slow_client_is_dropped_and_can_resume(lab):
    url = await lab.edge(client_buffer_bytes=4_096)
    texts = [f"{number:04d} " + "x" * 8_000 for number in range(1_500)]
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started())
        for start in range(0, len(texts), 50):  # the client does not read: the sockets' buffers fill, then the edge's
            await lab.write(*(writer.chunk(text) for text in texts[start : start + 50]))
        receipt = await lab.detached(writer.request_id)
        assert receipt.reason == "slow"
        seen = await client.rest()
    last = chunks(seen)[-1]
    assert last["error"]["code"] == "slow_client"
    await lab.write(writer.finished(), writer.closed())
    after = seen.split(b"id: ")[-1].split(b"\n")[0].decode()
    assert after == receipt.last
    async with lab.http.get(f"{url}/v1/chat/completions/{writer.request_id}?after={after}") as response:
        rest = await response.read()
    text = "".join(
        choice["delta"].get("content", "") for chunk in chunks(seen + rest) for choice in chunk.get("choices", ())
    )
    assert text == "".join(texts)
