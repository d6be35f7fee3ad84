"""Tests of websockets: one connection carries many requests, ops arrive one by one, and an answer can be resumed."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.integration.edge.lab import PATIENCE_S
from tests.support.edge_answers import ClientScreen
from tests.support.waiting import comes_true, until


class Socket:
    """A websocket client that applies the ops it receives to one screen per request."""

    def __init__(self, connection):
        self.connection = connection
        self.screens = {}
        self.ids = {}

    async def send(self, **message):
        await self.connection.send(json.dumps(message))

    async def get(self):
        message = json.loads(await asyncio.wait_for(self.connection.recv(), PATIENCE_S))
        if "op" in message:
            request_id = message["request_id"]
            self.screens.setdefault(request_id, ClientScreen()).op(message)
            self.ids[request_id] = message["id"]
        return message

    async def until(self, **fields):
        """Read messages until one has these fields, and return this message."""
        while True:
            message = await self.get()
            if fields.items() <= message.items():
                return message

    async def replies(self, count):
        """Yield the next ``count`` messages that are not ops. Apply the ops in between."""
        while count:
            message = await self.get()
            if "type" in message:
                count -= 1
                yield message

    async def until_closed(self):
        """Read until the connection is closed, and return the close code."""
        try:
            while True:
                await self.get()
        except ConnectionClosed as closed:
            return closed.rcvd.code


@asynccontextmanager
async def socket(url, **options):
    async with connect(f"{url.replace('http', 'ws')}/v1/stream", **options) as connection:
        yield Socket(connection)


async def count_until_closed(connection):
    """Read until the connection is closed, and return the number of messages and the close frame."""
    received = 0
    try:
        while True:
            await asyncio.wait_for(connection.recv(), PATIENCE_S)
            received += 1
    except ConnectionClosed as closed:
        return received, closed.rcvd


def client_frame(message):
    """Encode a message as a client's text frame, masked with zeros (RFC 6455, section 5.2).

    The encoded message must have 126 to 65,535 bytes.
    """
    payload = json.dumps(message).encode()
    return b"\x81\xfe%b%b%b" % (len(payload).to_bytes(2, "big"), bytes(4), payload)


async def test_an_answer_op_by_op(lab):
    async with socket(await lab.edge()) as client:
        await client.send(type="ask", prompt="hello", max_tokens=5, ref="mine")
        request = await lab.answer("Hello ", "world")
        accepted = await client.get()
        assert accepted["type"] == "accepted"
        assert accepted["ref"] == "mine"
        assert accepted["request_id"] == request.request_id
        ops = [await client.get() for _ in range(5)]
    assert [op["op"] for op in ops] == ["begin", "show", "show", "finish", "close"]
    assert {op["request_id"] for op in ops} == {request.request_id}
    assert client.screens[request.request_id].visible == "Hello world"
    assert request.messages[0].content == "hello"
    assert request.sampling.max_tokens == 5
    assert (await lab.detached(request.request_id)).reason == "complete"


async def test_several_requests_at_once_on_one_connection(lab):
    async with socket(await lab.edge()) as client:
        for number in range(4):
            await client.send(type="ask", messages=[{"role": "user", "content": str(number)}])
        writers = [await lab.next_writer() for _ in range(4)]
        await lab.write(*(writer.started() for writer in writers))
        for text in ("a", "b", "c"):
            await lab.write(*(writer.chunk(text + writer.request_id[-1]) for writer in writers))
        await lab.write(*(event for writer in writers for event in (writer.finished(), writer.closed())))
        for _ in writers:
            await client.until(op="close")
    for writer in writers:
        mark = writer.request_id[-1]
        assert client.screens[writer.request_id].visible == f"a{mark}b{mark}c{mark}"


async def test_a_broken_connection_is_resumed_on_another_edge(lab):
    first, second = await lab.edge(), await lab.edge()
    async with socket(first) as client:
        await client.send(type="ask", prompt="hello")
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("one "))
        last = (await client.until(op="show"))["id"]
        client.connection.transport.abort()
    assert (await lab.detached(writer.request_id)).reason == "gone"
    await lab.write(writer.chunk("two "))
    async with socket(second) as client:
        await client.send(type="resume", request_id=writer.request_id, after=last)
        assert (await client.until(op="show"))["text"] == "two "
        await lab.write(writer.chunk("three"), writer.finished(), writer.closed())
        await client.until(op="close")
        assert client.screens[writer.request_id].visible == "two three"


async def test_after_the_end_only_the_end_is_missing(lab):
    async with socket(await lab.edge()) as client:
        await client.send(type="ask", prompt="hello")
        request = await lab.answer("a")
        last = (await client.until(op="finish"))["id"]
        await client.until(op="close")
        await client.send(type="resume", request_id=request.request_id, after=last)
        assert (await client.until(request_id=request.request_id, type="accepted"))["partition"] >= 0
        assert (await client.get())["op"] == "close"


async def test_a_recall_replaces_exactly_its_span(lab):
    async with socket(await lab.edge()) as client:
        await client.send(type="ask", prompt="hello")
        writer = await lab.next_writer(checked=True)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("call \U0001f600 "), writer.chunk("555-0100"))
        await client.until(text="555-0100")
        await lab.write(writer.recall(7, 15), writer.chunk(" now"), writer.finished(), writer.cleared())
        op = await client.until(op="replace")
        assert (op["start"], op["end"], op["rule"], op["category"]) == (7, 15, "card", "pii")
        await client.until(op="finish")
        assert client.screens[writer.request_id].visible == "call \U0001f600 [gone] now"


async def test_cancel_leaves_the_request_to_the_router(lab):
    async with socket(await lab.edge()) as client:
        await client.send(type="ask", prompt="hello")
        writer = await lab.next_writer()
        await lab.write(writer.started())
        await client.until(op="begin")
        await client.send(type="cancel", request_id=writer.request_id)
        await client.until(type="detached", request_id=writer.request_id)
        assert (await lab.detached(writer.request_id)).reason == "gone"
        await client.send(type="cancel", request_id=writer.request_id)
        assert (await client.until(type="error"))["error"]["code"] == "request_not_found"


async def test_cancel_ends_a_stream_that_is_still_being_resumed(lab):
    asked, other = await lab.edge(), await lab.edge()
    async with lab.open_stream(asked) as stream:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("x"))
        await stream.until(b"x")
        async with socket(other) as client:
            await client.send(type="resume", request_id=writer.request_id)
            await client.send(type="cancel", request_id=f"chatcmpl-{writer.request_id}")
            await client.send(type="ping")
            replies = [message["type"] async for message in client.replies(2)]
            assert replies == ["detached", "pong"]
            await until(lambda: not len(lab.edges[other]._hub), "the stream is delivered")


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[]", "invalid_json", None),
        ("{}", "invalid_value", "type"),
        ('{"type": 5}', "invalid_value", "type"),
        ('{"type": "ask"}', "invalid_value", "messages"),
        ('{"type": "ask", "prompt": 5}', "invalid_value", "prompt"),
        ('{"type": "ask", "prompt": "x", "max_tokens": -1}', "invalid_value", "max_tokens"),
        ('{"type": "resume"}', "invalid_request_id", "request_id"),
        ('{"type": "resume", "request_id": "x"}', "invalid_request_id", "request_id"),
        ('{"type": "resume", "request_id": "01900000-0000-7000-8000-000000000000"}', "request_not_found", "request_id"),
        ('{"type": "cancel", "request_id": 7}', "invalid_value", "request_id"),
        (b"\x00\x01", "invalid_json", None),
    ],
)
async def test_a_wrong_message_gets_an_error_and_the_connection_stays_open(lab, message, code, param):
    async with socket(await lab.edge()) as client:
        await client.connection.send(message)
        error = (await client.until(type="error"))["error"]
        assert (error["code"], error["param"]) == (code, param)
        await client.send(type="ask", prompt="hello")
        await lab.answer("x")
        await client.until(op="close")


async def test_a_message_too_large_ends_the_connection(lab):
    async with socket(await lab.edge()) as client:
        with pytest.raises(ConnectionClosed) as error:  # perhaps while the client still sends
            await asyncio.gather(client.send(type="ask", prompt="x" * 2_000_000), client.get())
        assert error.value.rcvd.code == 1009


async def test_too_many_requests_on_one_connection(lab):
    async with socket(await lab.edge(max_socket_streams=1)) as client:
        await client.send(type="ask", prompt="one")
        await client.until(type="accepted")
        await client.send(type="ask", prompt="two", ref=2)
        error = await client.until(type="error")
        assert (error["error"]["code"], error["ref"]) == ("too_many_streams", 2)


async def test_a_page_of_another_origin_is_refused(lab):
    url = await lab.edge(allowed_origins="https://good.example")
    with pytest.raises(InvalidStatus) as error:
        async with socket(url, origin="https://evil.example"):
            pass
    assert error.value.response.status_code == 403
    for origin in (url, "https://good.example", None):
        async with socket(url, origin=origin) as client:
            await client.send(type="hello", key="any")
            await client.until(type="welcome")


@pytest.mark.usefixtures("patient_close")
async def test_a_slow_client_is_closed_with_1013_and_can_resume(lab):
    url = await lab.edge(client_buffer_bytes=4_096)
    async with socket(url, max_queue=1, max_size=None) as client:
        await client.send(type="ask", prompt="hello")
        writer = await lab.next_writer()
        await lab.write(writer.started())
        for _ in range(40):
            await lab.write(*(writer.chunk("x" * 8_000) for _ in range(50)))
        assert (await lab.detached(writer.request_id)).reason == "slow"
        assert await client.until_closed() == 1013
    await lab.write(writer.finished(), writer.closed())
    async with socket(url, max_size=None) as again:
        await again.send(type="resume", request_id=writer.request_id, after=client.ids[writer.request_id])
        await again.until(op="close")
    assert len(client.screens[writer.request_id].visible + again.screens[writer.request_id].visible) == 16_000_000


@pytest.mark.usefixtures("patient_close")
async def test_a_client_that_reads_no_reply_is_closed_with_1013(lab, keys_file):
    url = await lab.edge(api_keys_file=keys_file, client_buffer_bytes=4_096)
    batch = client_frame({"type": "ask", "ref": "r" * 256}) * 1_000
    batches = 40  # about 16 MB of replies: more than the kernel's buffers take
    async with connect(f"{url.replace('http', 'ws')}/v1/stream", max_queue=1, compression=None) as client:
        client.transport.pause_reading()
        for _ in range(batches):
            client.transport.write(batch)
            assert await comes_true(lambda: client.transport.get_write_buffer_size() == 0, PATIENCE_S, every_s=0.001)
        client.transport.resume_reading()
        received, closed = await count_until_closed(client)
    assert (closed.code, closed.reason) == (1013, "reads too slowly: resume at the last id")
    assert 0 < received < batches * 1_000


async def test_a_ping_is_answered(lab):
    async with socket(await lab.edge()) as client:
        await asyncio.wait_for(await client.connection.ping(b"still there"), PATIENCE_S)


async def test_a_stopping_edge_closes_with_1001(lab):
    async with socket(await lab.edge()) as client:
        await client.send(type="ask", prompt="hello")
        writer = await lab.next_writer()
        await client.until(type="accepted")
        await lab.stop_edges()
        with pytest.raises(ConnectionClosed) as error:
            await client.get()
        assert error.value.rcvd.code == 1001
        assert (await lab.detached(writer.request_id)).reason == "shutdown"
