"""Test that malformed HTTP gets an error status if a response is possible, and leaves no traceback in the log."""

import asyncio
import gzip
import logging
import zlib
from contextlib import asynccontextmanager

import orjson
import pytest

from services.edge.error_codes import ERROR_CODES
from tests.integration.edge.lab import ASK, PATIENCE_S, deltas

BODY = orjson.dumps(ASK)
PATH = "/v1/chat/completions"


def request(path="/v1/models", *headers, method="GET", host=b"127.0.0.1"):
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), b"Host: " + host, *headers, b"", b""])


def post(body, *headers, length=True):
    sized = [b"Content-Length: %d" % len(body)] if length else []
    return request(PATH, b"Content-Type: application/json", *sized, *headers, method="POST") + body


MALFORMED = {
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage\r\n\r\n",
    "garbage bytes": bytes(range(128, 256)) + b"\r\n\r\n",
    "no request line": b"HELLO\r\n\r\n",
    "an unknown version": b"GET / HTTP/9.9\r\n\r\n",
    "an impossible method": b"G@T{ / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "an impossible address": request("http://[/v1/models"),
    "a long request line": request("/" + "a" * 20_000),
    "a long header": request("/", b"X: " + b"a" * 20_000),
    "too many headers": request("/", *(b"X-%d: 1" % number for number in range(400))),
    "a header without a colon": request("/", b"no colon"),
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "an unclosed bracket in Host": request(host=b"["),
    "an unclosed bracket in Origin": request("/v1/models", b"Origin: http://["),
    "a key that is not UTF-8": post(BODY, b"Idempotency-Key: \xff\xfe"),
    "a websocket key that is not ASCII": request(
        "/v1/stream",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Key: \xff",
        b"Sec-WebSocket-Version: 13",
    ),
    "an Upgrade that is not UTF-8": request("/v1/stream", b"Upgrade: \xff", b"Connection: Upgrade"),
    "a negative length": post(BODY, b"Content-Length: -1", length=False),
    "a malformed chunk": post(b"zz\r\nabc\r\n0\r\n\r\n", b"Transfer-Encoding: chunked", length=False),
    "a malformed second chunk": post(b'5\r\n{"mes\r\nZZ\r\n', b"Transfer-Encoding: chunked", length=False),
    "a broken gzip body": post(b"\x1f\x8b no gzip at all", b"Content-Encoding: gzip"),
    "a plain body called gzip": post(BODY, b"Content-Encoding: gzip"),
    "half a gzip body": post(gzip.compress(BODY)[:-9], b"Content-Encoding: gzip"),
    "more than a gzip body": post(gzip.compress(BODY) + b"x", b"Content-Encoding: gzip"),
    "a broken deflate body": post(b"xxxx", b"Content-Encoding: deflate"),
}


@pytest.fixture
async def url(lab):
    return await lab.edge()


@asynccontextmanager
async def connection(url):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield reader, writer
    finally:
        writer.close()


def problems(caplog):
    return [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING]


async def test_malformed_http_is_400_and_leaves_no_traceback(lab, url, caplog):
    for name, raw in MALFORMED.items():
        async with connection(url) as (reader, writer):
            writer.write(raw)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.split()[1] == b"400", name
            assert b"\r\nServer: railbus\r\n" in head, name
            error = orjson.loads(await reader.read(10_000))["error"]
            assert error["type"] == "invalid_request_error", name
            assert error["code"] in ERROR_CODES, name
    assert problems(caplog) == []
    request, _ = await lab.ask(url)
    assert request.messages[0].content == "hello"


async def test_a_bad_expect_header_is_417_and_leaves_no_traceback(lab, url, caplog):
    for value in (b"nonsense", b"\xff\xfe"):
        for path in ("/v1/models", PATH):
            async with connection(url) as (reader, writer):
                writer.write(request(path, b"Expect: " + value, method="POST" if path == PATH else "GET"))
                assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"417"
    async with connection(url) as (_, writer):
        writer.write(request("/nothing", b"Expect: \xff\xfe"))
    async with lab.http.post(f"{url}{PATH}", json={}, expect100=True) as response:
        assert response.status == 400
    assert problems(caplog) == []


async def test_half_a_request_leaves_no_traceback(lab, url, caplog):
    for whole in (post(BODY), post(gzip.compress(BODY), b"Content-Encoding: gzip")):
        for size in (1, 30, len(whole) - 5):
            async with connection(url) as (reader, writer):
                writer.write(whole[:size])
                writer.write_eof()
                await reader.read()
    assert problems(caplog) == []
    request, _ = await lab.ask(url)
    assert request.messages[0].content == "hello"


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_compressed_body_is_read(lab, url, encoding, pack):
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    raw = pack(orjson.dumps(ASK | {"stream": True}))
    asking = asyncio.create_task(_read(lab.http.post(f"{url}{PATH}", data=raw, headers=headers)))
    await lab.answer("Hello ", "world")
    assert deltas((await asking)[1]) == "Hello world"


@pytest.mark.parametrize(
    ("encoding", "raw", "status", "code"),
    [
        ("gzip", gzip.compress(b" " * 100_000_000), 413, "request_too_large"),
        ("gzip", gzip.compress(b" " * 1_048_577), 413, "request_too_large"),
        ("gzip", gzip.compress(b" " * 1_048_576), 400, "invalid_json"),
        ("gzip", b"no gzip", 400, "invalid_encoding"),
        ("br", BODY, 415, "unsupported_encoding"),
    ],
)
async def test_a_compressed_body_that_is_refused(lab, url, encoding, raw, status, code):
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    got, body = await _read(lab.http.post(f"{url}{PATH}", data=raw, headers=headers))
    assert (got, orjson.loads(body)["error"]["code"]) == (status, code)


async def _read(call):
    async with call as response:
        return response.status, await response.read()
