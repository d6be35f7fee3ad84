"""Test that an answer can be resumed at every op and on any edge, while the answer is being written or later."""

import asyncio
from itertools import count

import pytest

from schemas.ids import uuid7
from schemas.topics import STREAMS
from services.bus import partition_for, write_raw_records
from services.bus.write.raw_records import RawRecord
from services.edge.delivery import subscription
from services.edge.log.lookup import LogLookup
from services.edge.requests import request_service
from services.runtime.clock import now_ms
from tests.integration.edge.lab import PARTITIONS, PATIENCE_S, SseReader, chunks, deltas
from tests.support.edge_answers import ClientScreen, plain_answer, sse_events

TEXTS = ("Hel", "lo ", "w\u00f6r", "ld \U0001f600", "\n")


async def get(lab, url, after=None, status=200):
    headers = {} if after is None else {"Last-Event-ID": after}
    async with lab.http.get(url, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.read()


def blocks(data):
    """Split a stream of server-sent events into pairs: the id of each event (or None) and the event's bytes."""
    parts = [block + b"\n\n" for block in data.split(b"\n\n") if block]
    return [(dict(line.split(b": ", 1) for line in part.strip().split(b"\n")).get(b"id"), part) for part in parts]


async def test_ops_are_resumed_at_every_op_on_two_edges(lab):
    first, second = await lab.edge(), await lab.edge()
    request, _ = await lab.ask(first, TEXTS)
    path = f"/v1/requests/{request.request_id}/events"
    uncut = await get(lab, first + path)
    assert deltas_of_ops(uncut) == "".join(TEXTS)
    assert uncut == await get(lab, second + path)
    pieces = blocks(uncut)
    assert len(pieces) == len(TEXTS) + 3  # begin, finish, close
    for number, (op_id, _) in enumerate(pieces):
        rest = b"".join(part for _, part in pieces[number + 1 :])
        for url in (first, second):
            assert await get(lab, url + path, op_id.decode()) == rest


async def test_a_chat_stream_is_resumed_at_every_chunk_byte_for_byte(lab):
    first, second = await lab.edge(), await lab.edge()
    request, uncut = await lab.ask(first, TEXTS, stream_options={"include_usage": True})
    path = f"/v1/chat/completions/chatcmpl-{request.request_id}?include_usage=true"
    assert await get(lab, second + path) == uncut
    pieces = blocks(uncut)
    ids = [op_id for op_id, _ in pieces]
    assert ids[-2:] == [None, None]  # the usage and [DONE] belong to the last op
    for number, op_id in enumerate(ids[:-2]):
        rest = b"".join(part for _, part in pieces[number + 1 :])
        for url in (first, second):
            assert await get(lab, url + path, op_id.decode()) == rest


async def test_a_running_answer_is_resumed_on_another_edge(lab):
    first, second = await lab.edge(), await lab.edge()
    async with lab.open_stream(first) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("one "), writer.chunk("two "))
        after = next(sse_events(await client.until(b"two")))["id"].decode()
    client = SseReader(lab.http.get(f"{second}/v1/chat/completions/{writer.request_id}?after={after}"))
    await client.until(b"two")
    await lab.write(writer.chunk("three "), writer.finished(), writer.closed())
    got = await client.rest()
    assert deltas(got) == "two three "
    assert got.endswith(b"data: [DONE]\n\n")


async def test_the_edge_that_saw_an_answer_reads_only_its_records_again(lab, monkeypatch):
    """An edge that sends an answer a second time reads only the part of the log that has the answer's events."""
    reads = []
    history = LogLookup.history

    async def spy(self, request_id, partition, end, tenant, begin=None):
        reads.append((begin, end))
        return await history(self, request_id, partition, end, tenant, begin)

    monkeypatch.setattr(LogLookup, "history", spy)
    first, second = await lab.edge(), await lab.edge()
    async with lab.open_stream(first) as client:
        writer = await lab.next_writer(checked=True)
        number = partition_for(writer.request_id, PARTITIONS)
        neighbour = next(each for n in count() if partition_for(each := uuid7(0, n), PARTITIONS) == number)
        before = plain_answer(neighbour, ["of another request"], tenant="local")
        await lab.write(*before)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"))
        await lab.write(writer.finished(), writer.cleared(), writer.closed())
        ids = [event["id"].decode() for event in sse_events(await client.rest()) if "id" in event]
    path = f"/v1/requests/{writer.request_id}/events"
    offsets = [int(op_id.split(":")[1]) for op_id in ids]
    assert b"555-0100" in await get(lab, first + path)
    assert len(before) <= reads[-1][0] <= offsets[0]
    assert reads[-1][1] <= offsets[-1] + 2  # the close follows the last op of the answer
    assert b"555-0100" in await get(lab, second + path)
    assert reads[-1][0] is None  # it has not seen the answer: it looks from the request's time on
    await lab.write(writer.recall(5, 13, action="redact"))
    for url in (first, second):
        await lab.until_text(url + path, b"[gone]")
    begin, end = reads[-2]
    assert b"555-0100" not in await get(lab, first + path)
    assert begin is None or end > offsets[-1]


@pytest.mark.parametrize("kind", ["Recall", "Verdict", "Cutover"])
async def test_what_may_take_text_back_and_cannot_be_read_ends_the_stream(lab, kind):
    """An edge ends the stream at a recall, verdict or cutover that it cannot read. Such an event may take text back."""
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("call 555-0100 "))
        await client.until(b"555-0100")
        key, number = writer.request_id.encode(), partition_for(writer.request_id, PARTITIONS)
        headers = (("kind", kind.encode()), ("v", b"99"))
        await write_raw_records(lab.bus, [RawRecord(STREAMS.name, number, key, b"{}", headers)], name="newer")
        await lab.write(writer.chunk("and more"), writer.finished(), writer.closed())
        rest = await client.rest()
    assert b"newer_version" in rest
    assert b"and more" not in rest
    for path in (f"/v1/requests/{writer.request_id}/events", f"/v1/chat/completions/{writer.request_id}"):
        assert b"newer_version" in await get(lab, url + path, status=503)
        assert b"newer_version" in await get(lab, await lab.edge() + path, status=503)


async def test_resumes_are_limited_per_tenant(lab):
    url = await lab.edge(resumes_per_minute=1, resume_burst=2)
    request, _ = await lab.ask(url)
    path = f"{url}/v1/requests/{request.request_id}/events"
    statuses = []
    for _ in range(3):
        async with lab.http.get(path) as response:
            statuses.append(response.status)
            body = await response.read()
    assert statuses == [200, 200, 429]
    assert b'"rate_limit_exceeded"' in body
    await lab.ask(url)  # requests are counted apart


async def test_many_join_one_answer_while_it_is_written(lab):
    """Every client that joins an answer while the answer is written gets every op exactly once."""
    urls = [await lab.edge(), await lab.edge()]
    asking = asyncio.create_task(lab.ask(urls[0], ()))
    writer = await lab.next_writer()
    texts = [f"{number} " for number in range(40)]
    readers = []
    await lab.write(writer.started())
    for number, text in enumerate(texts):
        await lab.write(writer.chunk(text))
        if number % 5 == 0:
            path = f"/v1/requests/{writer.request_id}/events"
            readers.append(asyncio.create_task(get(lab, urls[number % 2] + path)))
    await lab.write(writer.finished(), writer.closed())
    results = await asyncio.gather(*readers)
    assert len({*results}) == 1
    assert deltas_of_ops(results[0]) == "".join(texts)
    asking.cancel()


async def test_a_late_reader_gets_one_op_for_a_history_with_a_recall(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer(checked=True)
        await lab.write(
            writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"),
            writer.recall(5, 13), writer.chunk(" now"), writer.finished(), writer.cleared(), writer.closed(),
        )  # fmt: skip
        live = await client.rest()
    assert b"555-0100" in live
    path = f"{url}/v1/requests/{writer.request_id}/events"
    late = await get(lab, path)
    assert b"555-0100" not in late
    screen = ClientScreen()
    for event in sse_events(late):
        screen.take(event)
    assert screen.visible == "call [gone] now"
    assert [op["op"] for op in chunks(late)] == ["catch_up"]
    last = list(sse_events(late))[-1]["id"].decode()
    assert await get(lab, path, last) == b""


async def test_a_client_that_has_recalled_text_gets_the_redaction(lab):
    url = await lab.edge()
    async with lab.open_stream(url) as client:
        writer = await lab.next_writer(checked=True)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"))
        seen = await client.until(b"555-0100")
    had = list(sse_events(seen))[-1]["id"].decode()
    await lab.write(writer.recall(5, 13), writer.chunk(" now"), writer.finished(), writer.cleared(), writer.closed())
    screen = ClientScreen()
    screen.visible = "call 555-0100"
    for event in sse_events(await get(lab, f"{url}/v1/requests/{writer.request_id}/events", had)):
        screen.take(event)
    assert screen.visible == "call [gone] now"


async def test_the_whole_answer_can_be_read_later(lab):
    url = await lab.edge()
    request, _ = await lab.ask(url)
    async with lab.http.get(f"{url}/v1/chat/completions/{request.request_id}?stream=false") as response:
        body = await response.json()
    assert body["choices"][0]["message"]["content"] == "Hello world"


async def test_the_header_counts_more_than_the_address(lab):
    """The header ``Last-Event-ID`` overrides the URL's ``after``: a browser that reconnects repeats the old URL."""
    url = await lab.edge(resume_ms=0)  # the answer can be read until its total deadline
    request, _ = await lab.ask(url, TEXTS)
    path = f"{url}/v1/requests/{request.request_id}/events"
    (first, _), *_, (later, _), (_, last) = blocks(await get(lab, path))
    assert await get(lab, f"{path}?after={first.decode()}", later.decode()) == last


async def test_unknown_requests_and_positions_are_refused(lab):
    url = await lab.edge()
    request, data = await lab.ask(url)
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
        async with lab.http.get(path, headers=headers) as response:
            assert response.status == status, path
            assert (await response.json())["error"]["code"] == code


@pytest.mark.usefixtures("patient_expiry")
async def test_an_answer_too_old_is_not_found(lab):
    url = await lab.edge(resume_ms=0)
    request, _ = await lab.ask(url, railbus={"deadlines": {"total_ms": 50}})
    await asyncio.sleep(0.1)
    async with lab.http.get(f"{url}/v1/requests/{request.request_id}/events") as response:
        assert response.status == 404


async def test_an_answer_past_its_deadline_is_still_read_whole(lab, monkeypatch):
    url = await lab.edge()
    with monkeypatch.context() as patient:  # the answer may be late; when it is read again, no time is added
        for module in (subscription, request_service):
            patient.setattr(module, "EXPIRY_MARGIN_US", int(PATIENCE_S * 1e6))
        request, uncut = await lab.ask(url, railbus={"deadlines": {"total_ms": 1}})
    await asyncio.sleep(2.1)
    path = f"{url}/v1/chat/completions/{request.request_id}"
    assert set(await asyncio.gather(*(get(lab, path) for _ in range(60)))) == {uncut}


async def test_new_requests_hash_into_home_partitions(lab):
    first, second = await lab.edge(), await lab.edge()
    homes = {first: set(), second: set()}

    async def settled():
        for url in homes:
            for _ in range(12):
                request, _ = await lab.ask(url)
                homes[url].add(partition_for(request.request_id, STREAMS.partitions(PARTITIONS)))

    async with asyncio.timeout(PATIENCE_S):
        while not all(homes.values()) or homes[first] & homes[second]:  # until the group has assigned them
            homes = {first: set(), second: set()}
            await settled()
    assert all(homes.values())


@pytest.mark.parametrize("flag", ["stream=maybe", "include_usage=7"])
async def test_flags_are_true_or_false(lab, flag):
    url = await lab.edge()
    async with lab.http.get(f"{url}/v1/chat/completions/{uuid7(now_ms(), 1)}?{flag}") as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == flag.split("=")[0]


def deltas_of_ops(data):
    screen = ClientScreen()
    for event in sse_events(data):
        screen.take(event)
    return screen.visible
