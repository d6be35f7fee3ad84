"""Test the times that an edge measures for a request that it read late, because it was busy when the request arrived.

The client's waiting time counts from the request's arrival at the host. Deadlines count from the moment at which the
edge has read the request. So a busy edge does not shorten them.
"""

import asyncio
import contextlib
import json
import socket
import sys
import time
from urllib.parse import urlsplit

import pytest

from services.runtime.clock import now_us
from tests.integration.edge.lab import ASK
from tests.integration.edge.test_websocket import socket as websocket

BUSY_S = 0.4
"""How long the event loop, which the edge and the test share, is blocked, in seconds."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when bytes arrived")


def post(**body):
    data = json.dumps(ASK | {"stream": True} | body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def connected(url):
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))


def be_busy():
    time.sleep(BUSY_S)


async def read_answer(lab, client):
    """Read a response until its chunked body ends, and return all bytes."""
    read = bytearray()
    client.settimeout(0)

    def whole():
        with contextlib.suppress(BlockingIOError):
            read.extend(client.recv(65_536))
        return read.endswith(b"\r\n0\r\n\r\n")

    await lab.until(whole)
    client.settimeout(None)
    return bytes(read)


async def test_over_http(lab):
    url = await lab.edge()
    with connected(url) as client:
        client.sendall(post())
        sent_us = now_us()
        be_busy()
        request = await lab.answer("Hello ", "world")
        assert request.at <= sent_us + BUSY_S * 1e6 / 2
        assert request.waited_ms < now_us() / 1e3 - sent_us / 1e3 - BUSY_S * 1e3
        assert b"world" in await read_answer(lab, client)
    receipt = await lab.detached(request.request_id)
    assert receipt.first_text_ms >= BUSY_S * 1e3
    assert receipt.at - request.at >= BUSY_S * 1e6


async def test_the_next_request_on_a_connection(lab):
    """A second request's waiting time counts from its arrival, even if the edge is still busy with the first answer."""
    url = await lab.edge()
    with connected(url) as client:
        client.sendall(post())
        await lab.answer("first")
        assert b"first" in await read_answer(lab, client)  # the edge has yet to finish its handling
        before_us = now_us()
        client.sendall(post())
        sent_us = now_us()
        be_busy()
        request = await lab.answer("second")
        assert before_us <= request.at <= sent_us + BUSY_S * 1e6 / 2
        assert b"second" in await read_answer(lab, client)


async def test_a_request_sent_ahead_counts_from_the_answer_before_it(lab):
    url = await lab.edge()
    with connected(url) as client:
        client.sendall(post())
        first = await lab.next_request()
        client.sendall(post())
        be_busy()  # it has come, and waits for its turn
        answered_us = now_us()
        await lab.write_plain(first, "first")
        request = await lab.answer("second")
        assert request.at >= answered_us


async def test_a_body_that_comes_after_its_head(lab):
    """A request's waiting time and deadlines start no earlier than the arrival of its last byte."""
    url = await lab.edge()
    head, _, body = post().partition(b"\r\n\r\n")
    with connected(url) as client:
        for part in (head + b"\r\n\r\n", body[:9]):
            client.sendall(part)
            await asyncio.sleep(BUSY_S)
        last_us = now_us()
        client.sendall(body[9:])
        request = await lab.answer("Hello")
        assert request.waited_ms <= (now_us() - last_us) / 1e3
        assert request.at >= last_us
        assert b"Hello" in await read_answer(lab, client)


async def test_over_a_websocket(lab):
    url = await lab.edge()
    async with websocket(url) as client:
        await client.send(type="ask", prompt="hello")
        sent_us = now_us()
        be_busy()
        request = await lab.answer("Hello")
        assert request.at <= sent_us + BUSY_S * 1e6 / 2
        await client.until(op="close")
