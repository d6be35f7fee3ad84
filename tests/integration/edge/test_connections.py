"""Test that slow and surplus connections end with one clear reason, while health checks are answered."""

import asyncio
import gc
import json
import resource
import subprocess
import weakref
from contextlib import closing, contextmanager, suppress
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from prometheus_client import REGISTRY
from websockets.asyncio.client import connect

from services.edge.error_codes import ERROR_CODES
from services.edge.http import websockets
from services.edge.http.connections import LimitedHandler
from tests.integration.edge.lab import ASK, PATIENCE_S
from tests.integration.edge.test_process import command
from tests.integration.edge.test_websocket import count_until_closed, socket
from tests.support.processes import START_TIMEOUT_S, die_with_parent, free_port
from tests.support.waiting import until

SHORT_MS = 300
LONG_MS = 600_000
OPEN_FILES = 256
FLOOD = 400
HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_A_BODY = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b'Content-Length: 1000\r\n\r\n{"messages": ['
)
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def client(url, sent=b""):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer


async def answer(reader):
    """Read a response to its end, and return the HTTP status and the error code."""
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE_S)).partition(b"\r\n\r\n")
    assert b"\r\nConnection: close" in head
    error = json.loads(body)["error"]
    status = int(head.split()[1])
    assert status in ERROR_CODES[error["code"]].statuses
    return status, error["code"]


@pytest.mark.parametrize("sent", [b"", b"G", HALF_A_HEAD, HALF_A_BODY])
async def test_a_silent_or_slow_client_is_told_and_closed(lab, sent):
    url = await lab.edge(request_timeout_ms=SHORT_MS)
    reader, writer = await client(url, sent)
    with closing(writer):
        assert await answer(reader) == (408, "request_timeout")


async def test_a_byte_now_and_then_does_not_extend_the_time(lab):
    url = await lab.edge(request_timeout_ms=SHORT_MS)
    reader, writer = await client(url, HALF_A_HEAD)
    with closing(writer):
        reading = asyncio.create_task(reader.read())
        async with asyncio.timeout(PATIENCE_S):
            while not reading.done():
                writer.write(b"x")
                await asyncio.sleep(0.02)
        await asyncio.gather(reading, return_exceptions=True)  # a reset, if a byte arrived after the end


async def test_a_connection_without_a_further_request_is_closed(lab):
    url = await lab.edge(idle_timeout_ms=SHORT_MS)
    reader, writer = await client(url, HEALTH)
    with closing(writer):
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"ok\n")


async def test_a_websocket_without_a_first_message_is_closed(lab, keys_file):
    url = await lab.edge(api_keys_file=keys_file, hello_timeout_ms=SHORT_MS)
    for message in (None, {"type": "hello", "key": "wrong"}):
        async with connect(f"{url.replace('http', 'ws')}/v1/stream") as connection:
            if message is not None:
                await connection.send(json.dumps(message))
            _, closed = await count_until_closed(connection)
        assert closed.code == 1008
        assert "first message" in closed.reason


def alive(kind):
    """Return all objects of a class that still exist in this process."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, kind)]


def pass_time(seconds):
    """Make the edges check their time limits as if ``seconds`` had passed. They close every connection that is late.

    So a test can use long limits, which no client exceeds by accident.
    """
    loop = asyncio.get_running_loop()
    for connections in {each._connections for each in alive(LimitedHandler) if each._loop is loop}:
        connections.tick(loop.time() + seconds)


async def test_a_websocket_that_said_hello_stays_open(lab, keys_file):
    url = await lab.edge(api_keys_file=keys_file, hello_timeout_ms=LONG_MS, request_timeout_ms=LONG_MS)
    key = {"additional_headers": {"Authorization": "Bearer k-a"}}
    async with socket(url) as greeting, socket(url, **key) as keyed:
        await greeting.send(type="hello", key="k-a")
        await greeting.until(type="welcome")
        pass_time(4 * LONG_MS / 1_000)
        for each in (greeting, keyed):
            await each.send(type="ask", prompt="hello")
            await lab.answer("x")
            await each.until(op="close")


async def test_a_stream_outlives_the_time_for_requests(lab):
    url = await lab.edge(request_timeout_ms=LONG_MS, idle_timeout_ms=LONG_MS)
    async with lab.open_stream(url) as stream:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("one "))
        await stream.until(b"one ")
        pass_time(4 * LONG_MS / 1_000)
        await lab.write(writer.chunk("two"), writer.finished(), writer.closed())
        assert b"[DONE]" in await stream.rest()


@pytest.mark.parametrize(("limit", "status"), [({"max_connections": 2}, 503), ({"max_address_connections": 2}, 429)])
async def test_an_idle_connection_makes_room_with_a_reason(lab, limit, status):
    url = await lab.edge(**limit)
    async with socket(url) as idle:
        reader, writer = await client(url, HALF_A_HEAD)
        with closing(writer):
            async with lab.http.get(f"{url}/healthz") as response:
                assert response.status == 200
            _, closed = await count_until_closed(idle.connection)
            assert (closed.code, closed.reason.split(":")[0][:20]) == (1013, "Too many connections")
            _, other = await client(url)
            other.close()
            assert await answer(reader) == (status, "too_many_connections")


async def test_beyond_the_limit_of_busy_ones_only_health_checks_pass(lab):
    url = await lab.edge(max_connections=1)
    async with lab.open_stream(url) as stream:
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("one "))
        await stream.until(b"one ")
        async with aiohttp.ClientSession() as http:
            for path, status in (("/v1/models", 503), ("/healthz", 200), ("/readyz", 200), ("/v1/stream", 503)):
                async with http.get(url + path) as response:
                    assert response.status == status
                    assert response.headers["Connection"] == "close"
                    if status == 503:
                        assert (await response.json())["error"]["code"] == "too_many_connections"


PART_BYTES = 950_000
"""How many bytes are sent of a body or message of a million bytes."""

PART_OF_A_BODY = HALF_A_BODY.replace(b": 1000\r\n", b": 1000000\r\n") + b" " * PART_BYTES
PART_OF_A_MESSAGE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
     b"\x81\xff" + (1_000_000).to_bytes(8, "big") + bytes(4 + PART_BYTES)
)  # fmt: skip


def body_bytes():
    return REGISTRY.get_sample_value("railbus_edge_body_bytes")


def has_arrived(count):
    return body_bytes() >= count * PART_BYTES


@pytest.mark.parametrize(
    ("part", "told"),
    [(PART_OF_A_BODY, b"HTTP/1.1 503"), (PART_OF_A_MESSAGE, b"\x03\xf5Too many bytes")],  # 1013
    ids=["body", "message"],
)
async def test_whoever_sends_slowest_makes_room_for_the_bytes_of_others(lab, part, told):
    url = await lab.edge(body_memory_mb=8)
    clients = []
    try:
        for number in range(12):
            clients.append(await client(url, part))
            await until(partial(has_arrived, min(number + 1, 8)))
            assert body_bytes() <= 8 * 1_048_576
        for reader, _ in clients[:4]:
            assert told in await asyncio.wait_for(reader.read(), PATIENCE_S)
        asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", json=ASK))
        await lab.answer("x")
        assert (await asking).status == 200  # the others have done nothing to it
    finally:
        for _, writer in clients:
            writer.close()
    await until(lambda: body_bytes() == 0)


async def test_part_of_a_message_is_freed_as_its_connection_is_dropped(lab):
    _, writer = await client(await lab.edge(body_memory_mb=8), PART_OF_A_MESSAGE)
    with closing(writer):
        await until(partial(has_arrived, 1))
        assert body_bytes() == 14 + PART_BYTES  # nothing of it is counted twice
        [handler] = [each for each in alive(LimitedHandler) if each._payload_parser is not None]
        parser = weakref.ref(handler._payload_parser)
        bodies = handler._connections.bodies
        bodies.add(writer, 8 * 1_048_576)
        assert parser() is None  # many may be dropped in one round of the event loop
        assert not handler._message_tail
        bodies.forget(writer)
        await until(lambda: body_bytes() == 0)


def question(characters):
    body = json.dumps({"messages": [{"role": "user", "content": "x" * characters}], "stream": True}).encode()
    return HALF_A_BODY.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_what_is_sent_ahead_counts_until_its_turn_comes(lab):
    reader, writer = await client(await lab.edge(), question(10))
    with closing(writer):
        first = await lab.next_request()
        writer.write(question(100_000))
        await until(lambda: body_bytes() > 100_000)
        await lab.write_plain(first, "x")
        second = await lab.next_request()
        assert len(second.messages[0].content) == 100_000
        await until(lambda: body_bytes() == 0)
        await lab.write_plain(second, "y")
        for _ in range(2):
            await asyncio.wait_for(reader.readuntil(b"[DONE]"), PATIENCE_S)


async def test_what_is_sent_ahead_makes_room_without_a_word_in_the_answer(lab):
    url = await lab.edge(body_memory_mb=8)
    reader, writer = await client(url, question(10))
    others = []
    try:
        speaker = await lab.next_writer()
        await lab.write(speaker.started(), speaker.chunk("begun"))
        await asyncio.wait_for(reader.readuntil(b"begun"), PATIENCE_S)
        writer.write(PART_OF_A_BODY)
        await until(lambda: body_bytes() > 0)
        others.extend([await client(url, PART_OF_A_BODY) for _ in range(9)])
        rest = b""
        with suppress(ConnectionError):
            while piece := await asyncio.wait_for(reader.read(65_536), PATIENCE_S):
                rest += piece
        assert b"HTTP/1.1" not in rest
        await until(lambda: 7 * PART_BYTES < body_bytes() <= 8 * 1_048_576)
    finally:
        for _, other in [(reader, writer), *others]:
            other.close()


async def test_what_a_client_that_is_gone_has_sent_ahead_is_not_kept(lab):
    gc.collect()
    gc.disable()
    try:
        _, writer = await client(await lab.edge(), question(10))
        speaker = await lab.next_writer()
        await lab.write(speaker.started())
        writer.write(question(100_000))
        await until(lambda: body_bytes() > 100_000)
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while body_bytes():  # the edge notices that the client is gone when it writes to it
                await lab.write(speaker.chunk("x"))
                await asyncio.sleep(0.05)
        kept = [each for each in gc.get_objects() if isinstance(each, LimitedHandler) and each._messages]
        assert kept == []
    finally:
        gc.enable()


async def test_few_requests_that_are_sent_ahead_are_kept(lab):
    url = await lab.edge()
    _, writer = await client(url, question(250_000) * 20)
    with closing(writer):
        await until(lambda: any(handler._messages for handler in alive(LimitedHandler)))
        await asyncio.sleep(0.5)  # the rest has time to arrive
        assert max(len(handler._messages) for handler in alive(LimitedHandler)) <= 2


async def test_a_head_that_is_too_long_is_not_kept(lab):
    reader, writer = await client(await lab.edge(), b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 100_000)
    gc.collect()
    gc.disable()
    try:
        with closing(writer):
            assert b" 400 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
            errors = [each for each in gc.get_objects() if isinstance(each, LineTooLong)]
            assert [error.__traceback__ for error in errors if error.__traceback__] == []
    finally:
        gc.enable()


async def test_a_websocket_that_is_gone_is_let_go_of_at_once(lab, monkeypatch):
    monkeypatch.setattr(websockets, "HEARTBEAT_S", LONG_MS / 1_000)  # the heartbeat would keep it this long
    url = await lab.edge()
    _, writer = await client(url, PART_OF_A_MESSAGE)
    await until(partial(has_arrived, 1))
    assert alive(web.WebSocketResponse)
    writer.transport.abort()
    await until(lambda: not alive(web.WebSocketResponse), within_s=PATIENCE_S, every_s=0.2)


@contextmanager
def edge_process(**env):
    """Run an edge that may open only ``OPEN_FILES`` files. It has no broker. Yield its URL and its process."""
    port = free_port()
    options = command(RAILBUS_KAFKA_BOOTSTRAP="127.0.0.1:1", RAILBUS_EDGE_PORT=str(port), **env)

    def limit_open_files():
        die_with_parent()
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))

    process = subprocess.Popen(
        options["args"], cwd=options["cwd"], env=options["env"], preexec_fn=limit_open_files, stderr=subprocess.PIPE
    )
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


async def is_healthy(url):
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await client(url, HEALTH)
            with closing(writer):
                return (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY])
async def test_health_answers_during_a_flood_of_idle_connections(sent):
    with edge_process() as (url, process):
        await until(lambda: is_healthy(url), "the edge listens", within_s=START_TIMEOUT_S)
        flood = [await client(url, sent) for _ in range(FLOOD)]
        try:
            assert [await is_healthy(url) for _ in range(5)] == [True] * 5
            assert process.poll() is None
        finally:
            for _, writer in flood:
                writer.close()


@pytest.mark.parametrize("trusted", ["127.0.0.0/8", ""])
async def test_behind_a_trusted_proxy_each_client_has_its_own_limit(lab, trusted):
    """``X-Forwarded-For`` names the client only if the connection comes from a trusted proxy."""
    url = await lab.edge(max_address_connections=2, trusted_proxies=trusted)
    answers = []  # the streams stay open
    for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"):
        headers = {"X-Forwarded-For": f"made-up, {address}"}
        call = lab.http.post(f"{url}/v1/chat/completions", headers=headers, json=ASK | {"stream": True})
        asking = asyncio.create_task(_opened(call))
        if len(answers) < (3 if trusted else 2):
            writer = await lab.next_writer()
            await lab.write(writer.started(), writer.chunk("x"))
        answers.append(await asking)
    assert [each.status for each in answers] == ([200, 200, 200, 429] if trusted else [200, 200, 429, 429])
    for each in answers:
        each.close()


async def _opened(call):
    return await call


async def test_open_connections_are_counted_by_kind(lab):
    url = await lab.edge()
    async with socket(url) as client_:
        await client_.send(type="ping")
        await client_.until(type="pong")

        async def counted():
            async with lab.http.get(f"{url}/metrics") as response:
                return 'railbus_edge_connections{kind="websocket"} 1.0' in await response.text()

        await until(counted)
