"""An answer is taken up again anywhere: at every op, on any edge, while it goes on or long after."""

import asyncio

import pytest

from schemas.ids import uuid7
from schemas.topics import STREAMS
from services.bus import partition_for
from services.runtime.clock import now_ms
from tests.integration.edge.stage import PARTITIONS, Listener, chunks, deltas
from tests.unit.edge.answers import ClientScreen, sse_events

TEXTS = ("Hel", "lo ", "w\u00f6r", "ld \U0001f600", "\n")


async def get(stage, url, after=None, status=200):
    headers = {} if after is None else {"Last-Event-ID": after}
    async with stage.http.get(url, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.read()


def blocks(data):
    """Each event's own bytes, with its id."""
    parts = [block + b"\n\n" for block in data.split(b"\n\n") if block]
    return [(dict(line.split(b": ", 1) for line in part.strip().split(b"\n")).get(b"id"), part) for part in parts]


async def test_ops_are_resumed_at_every_op_on_two_edges(stage):
    first, second = await stage.edge(), await stage.edge()
    request, _ = await stage.ask(first, TEXTS)
    path = f"/v1/requests/{request.request_id}/events"
    uncut = await get(stage, first + path)
    assert deltas_of_ops(uncut) == "".join(TEXTS)
    assert uncut == await get(stage, second + path)
    pieces = blocks(uncut)
    assert len(pieces) == len(TEXTS) + 3  # begin, finish, close
    for number, (op_id, _) in enumerate(pieces):
        rest = b"".join(part for _, part in pieces[number + 1 :])
        for url in (first, second):
            assert await get(stage, url + path, op_id.decode()) == rest


async def test_a_chat_stream_is_resumed_at_every_chunk_byte_for_byte(stage):
    first, second = await stage.edge(), await stage.edge()
    request, uncut = await stage.ask(first, TEXTS, stream_options={"include_usage": True})
    path = f"/v1/chat/completions/chatcmpl-{request.request_id}?include_usage=true"
    assert await get(stage, second + path) == uncut
    pieces = blocks(uncut)
    ids = [op_id for op_id, _ in pieces]
    assert ids[-2:] == [None, None]  # the usage and [DONE] belong to the last op
    for number, op_id in enumerate(ids[:-2]):
        rest = b"".join(part for _, part in pieces[number + 1 :])
        for url in (first, second):
            assert await get(stage, url + path, op_id.decode()) == rest


async def test_an_answer_that_goes_on_is_joined_on_another_edge(stage):
    first, second = await stage.edge(), await stage.edge()
    async with stage.listening(first) as client:
        writer = await stage.taken()
        await stage.say(writer.started(), writer.chunk("one "), writer.chunk("two "))
        after = next(sse_events(await client.until(b"two")))["id"].decode()
    client = Listener(stage.http.get(f"{second}/v1/chat/completions/{writer.request_id}?after={after}"))
    await client.until(b"two")
    await stage.say(writer.chunk("three "), writer.finished(), writer.closed())
    got = await client.rest()
    assert deltas(got) == "two three "
    assert got.endswith(b"data: [DONE]\n\n")


async def test_many_join_one_answer_while_it_is_written(stage):
    """Whatever is on the log when a reader comes, each gets all of it once."""
    urls = [await stage.edge(), await stage.edge()]
    asking = asyncio.create_task(stage.ask(urls[0], ()))
    writer = await stage.taken()
    texts = [f"{number} " for number in range(40)]
    readers = []
    await stage.say(writer.started())
    for number, text in enumerate(texts):
        await stage.say(writer.chunk(text))
        if number % 5 == 0:
            path = f"/v1/requests/{writer.request_id}/events"
            readers.append(asyncio.create_task(get(stage, urls[number % 2] + path)))
    await stage.say(writer.finished(), writer.closed())
    results = await asyncio.gather(*readers)
    assert len({*results}) == 1
    assert deltas_of_ops(results[0]) == "".join(texts)
    asking.cancel()


async def test_a_late_reader_gets_one_op_for_a_history_with_a_recall(stage):
    url = await stage.edge()
    async with stage.listening(url) as client:
        writer = await stage.taken(checked=True)
        await stage.say(
            writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"),
            writer.recall(5, 13), writer.chunk(" now"), writer.finished(), writer.cleared(), writer.closed(),
        )  # fmt: skip
        live = await client.rest()
    assert b"555-0100" in live
    path = f"{url}/v1/requests/{writer.request_id}/events"
    late = await get(stage, path)
    assert b"555-0100" not in late
    screen = ClientScreen()
    for event in sse_events(late):
        screen.take(event)
    assert screen.visible == "call [gone] now"
    assert [op["op"] for op in chunks(late)] == ["catch_up"]
    last = list(sse_events(late))[-1]["id"].decode()
    assert await get(stage, path, last) == b""


async def test_a_client_that_saw_it_is_told_to_take_it_back(stage):
    url = await stage.edge()
    async with stage.listening(url) as client:
        writer = await stage.taken(checked=True)
        await stage.say(writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"))
        seen = await client.until(b"555-0100")
    had = list(sse_events(seen))[-1]["id"].decode()
    await stage.say(writer.recall(5, 13), writer.chunk(" now"), writer.finished(), writer.cleared(), writer.closed())
    screen = ClientScreen()
    screen.visible = "call 555-0100"
    for event in sse_events(await get(stage, f"{url}/v1/requests/{writer.request_id}/events", had)):
        screen.take(event)
    assert screen.visible == "call [gone] now"


async def test_the_whole_answer_can_be_read_later(stage):
    url = await stage.edge()
    request, _ = await stage.ask(url)
    async with stage.http.get(f"{url}/v1/chat/completions/{request.request_id}?stream=false") as response:
        body = await response.json()
    assert body["choices"][0]["message"]["content"] == "Hello world"


async def test_what_does_not_exist_is_refused(stage):
    url = await stage.edge()
    request, data = await stage.ask(url)
    known = f"{url}/v1/requests/{request.request_id}/events"
    place = list(sse_events(data))[-2]["id"].decode()
    partition, offset, nth = map(int, place.split(":"))
    other = uuid7(now_ms(), 5)
    cases = [
        (f"{url}/v1/requests/{other}/events", None, 404, "request_not_found"),
        (f"{url}/v1/requests/{uuid7(now_ms() - 90_000_000, 7)}/events", None, 404, "request_not_found"),
        (f"{url}/v1/requests/nonsense/events", None, 400, "invalid_request_id"),
        (f"{url}/v1/requests/{other.upper()}/events", None, 400, "invalid_request_id"),
        (known, "1:2", 400, "invalid_position"),
        (known, "a:b:c", 400, "invalid_position"),
        (known, "1:2:3:4", 400, "invalid_position"),
        (known, f"{partition}:999999999:0", 400, "unknown_position"),
        (known, f"{partition}:{offset}:{nth + 5}", 400, "unknown_position"),
        (known, f"{(partition + 1) % PARTITIONS}:{offset}:{nth}", 400, "unknown_position"),
    ]
    for path, after, status, code in cases:
        headers = {} if after is None else {"Last-Event-ID": after}
        async with stage.http.get(path, headers=headers) as response:
            assert response.status == status, path
            assert (await response.json())["error"]["code"] == code


async def test_an_answer_too_old_is_forgotten(stage):
    url = await stage.edge(resume_ms=0)
    request, _ = await stage.ask(url, railbus={"deadlines": {"total_ms": 50}})
    await asyncio.sleep(0.1)
    async with stage.http.get(f"{url}/v1/requests/{request.request_id}/events") as response:
        assert response.status == 404


async def test_an_answer_past_its_deadline_is_still_read_whole(stage):
    url = await stage.edge()
    request, uncut = await stage.ask(url, railbus={"deadlines": {"total_ms": 1}})
    await asyncio.sleep(2.1)
    path = f"{url}/v1/chat/completions/{request.request_id}"
    assert set(await asyncio.gather(*(get(stage, path) for _ in range(60)))) == {uncut}


async def test_new_requests_live_where_their_edge_reads_anyway(stage):
    first, second = await stage.edge(), await stage.edge()
    homes = {first: set(), second: set()}

    async def settled():
        for url in homes:
            for _ in range(12):
                request, _ = await stage.ask(url)
                homes[url].add(partition_for(request.request_id, STREAMS.partitions(PARTITIONS)))

    async with asyncio.timeout(20):
        while not all(homes.values()) or homes[first] & homes[second]:  # until the group has dealt them out
            homes = {first: set(), second: set()}
            await settled()
    assert all(homes.values())


@pytest.mark.parametrize("flag", ["stream=maybe", "include_usage=7"])
async def test_flags_are_true_or_false(stage, flag):
    url = await stage.edge()
    async with stage.http.get(f"{url}/v1/chat/completions/{uuid7(now_ms(), 1)}?{flag}") as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == flag.split("=")[0]


def deltas_of_ops(data):
    screen = ClientScreen()
    for event in sse_events(data):
        screen.take(event)
    return screen.visible
