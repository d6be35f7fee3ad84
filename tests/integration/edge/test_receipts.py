"""What each connection was sent stands on the log, so that a replay can be proved to be it."""

import asyncio
import hashlib

import orjson

from schemas.books import Attached
from services.stream import Screen
from tests.integration.edge.stage import ASK, chunks
from tests.unit.edge.answers import plain_answer


def lines_of(events):
    screen = Screen(events[0].request_id)
    return [orjson.dumps(op) for event in events for op in screen.feed(event)]


async def test_a_whole_answer(stage):
    url = await stage.edge()
    async with stage.listening(url) as client:
        request = await stage.request()
        events = plain_answer(request.request_id, ["a", "b"])
        await stage.say(*events)
        data = await client.rest()
    receipt = await stage.detached(request.request_id)
    (attached,) = stage.receipts(Attached, request.request_id)
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


async def test_a_resumed_rest(stage):
    url = await stage.edge()
    request, data = await stage.ask(url, ("a", "b", "c"))
    after = data.split(b"id: ")[1].split(b"\n")[0].decode()
    async with stage.http.get(f"{url}/v1/requests/{request.request_id}/events?after={after}") as response:
        rest = chunks(await response.read())
    receipt = await stage.detached(request.request_id, 2)
    assert stage.receipts(Attached, request.request_id)[-1].resumed_from == after
    assert receipt.ops == len(rest) == 4
    lines = b"".join(orjson.dumps(op) + b"\n" for op in rest)
    assert receipt.ops_hash == hashlib.sha256(lines).hexdigest()


async def test_a_client_that_goes_away(stage):
    url = await stage.edge()
    async with stage.listening(url) as client:
        writer = await stage.taken()
        await stage.say(writer.started(), writer.chunk("a"))
        await client.until(b'"a"')
    receipt = await stage.detached(writer.request_id)
    assert receipt.reason == "gone"
    assert receipt.ops == 2


async def test_a_client_that_goes_away_before_anything_came(stage):
    url = await stage.edge()
    for stream in (True, False):
        asking = asyncio.create_task(stage.http.post(f"{url}/v1/chat/completions", json=ASK | {"stream": stream}))
        request = await stage.request()
        asking.cancel()
        receipt = await stage.detached(request.request_id)
        assert (receipt.reason, receipt.ops) == ("gone", 0)


async def test_exposure_is_measured(stage):
    url = await stage.edge()
    async with stage.listening(url) as client:
        writer = await stage.taken(checked=True)
        await stage.say(
            writer.started(), writer.allowed(), writer.chunk("safe ", tokens=2), writer.cleared(final=False)
        )
        await stage.say(writer.chunk("secret", tokens=3))
        await client.until(b"secret")
        await asyncio.sleep(0.05)
        await stage.say(writer.recall(5, 11, "stop"), writer.closed("recalled"))
        await client.rest()
    receipt = await stage.detached(writer.request_id)
    assert receipt.exposed_tokens == 3
    assert 50 <= receipt.exposure_ms < 5_000


async def test_a_stopping_edge_says_so_and_another_goes_on(stage):
    url = await stage.edge()
    async with stage.listening(url) as client:
        writer = await stage.taken()
        await stage.say(writer.started(), writer.chunk("one "))
        await client.until(b"one")
        await stage.stop_edges()
        seen = await client.rest()
    assert chunks(seen)[-1]["error"]["code"] == "server_stopping"
    assert (await stage.detached(writer.request_id)).reason == "shutdown"
    other = await stage.edge()
    await stage.say(writer.chunk("two"), writer.finished(), writer.closed())
    async with stage.http.get(f"{other}/v1/chat/completions/{writer.request_id}?stream=false") as response:
        assert (await response.json())["choices"][0]["message"]["content"] == "one two"


async def test_a_slow_client_is_dropped_and_can_resume(stage):
    url = await stage.edge(client_buffer_bytes=4_096)
    texts = [f"{number:04d} " + "x" * 8_000 for number in range(1_500)]
    async with stage.listening(url) as client:
        writer = await stage.taken()
        await stage.say(writer.started())
        for start in range(0, len(texts), 50):  # nobody reads: the sockets' buffers fill, then the edge's
            await stage.say(*(writer.chunk(text) for text in texts[start : start + 50]))
        receipt = await stage.detached(writer.request_id)
        assert receipt.reason == "slow"
        seen = await client.rest()
    last = chunks(seen)[-1]
    assert last["error"]["code"] == "slow_client"
    await stage.say(writer.finished(), writer.closed())
    after = seen.split(b"id: ")[-1].split(b"\n")[0].decode()
    assert after == receipt.last
    async with stage.http.get(f"{url}/v1/chat/completions/{writer.request_id}?after={after}") as response:
        rest = await response.read()
    text = "".join(
        choice["delta"].get("content", "") for chunk in chunks(seen + rest) for choice in chunk.get("choices", ())
    )
    assert text == "".join(texts)
