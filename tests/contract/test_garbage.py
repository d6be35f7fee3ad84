"""Test that clients which send invalid bytes, or disconnect at any time, do not disturb other clients.

Further tests check that valid requests are answered in order, even if they arrive byte by byte.
"""

import asyncio
import os
import struct

import pytest

from tests.contract import wire
from tests.contract.lab import PATIENCE_S, KafkaClients

API_VERSIONS = 18
METADATA = 3
UNSUPPORTED_VERSION = 35


def _frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _header(key: int, version: int, correlation: int = 7) -> bytes:
    return struct.pack(">hhih", key, version, correlation, -1)


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": bytes.fromhex("16030100f8010000f40303") + bytes(240),
    "random": os.urandom(64) + b"\x7f" * 64,
    "zeros": bytes(64),
    "negative length": struct.pack(">i", -1) + b"x" * 16,
    "huge length": struct.pack(">i", 0x7FFFFFFF) + b"x" * 16,
    "empty frame": _frame(b""),
    "frame shorter than a header": _frame(b"\x00\x03"),
    "unknown api key": _frame(_header(9999, 0)),
    "negative api key": _frame(_header(-1, 0)),
    "future version": _frame(_header(METADATA, 999) + bytes(32)),
    "negative version": _frame(_header(METADATA, -1) + bytes(32)),
    "body cut short": _frame(_header(METADATA, 1) + struct.pack(">i", 3) + b"\x00"),
    "array of two billion": _frame(_header(METADATA, 1) + struct.pack(">i", 0x7FFFFFFF)),
    "string length beyond the frame": _frame(_header(METADATA, 1) + struct.pack(">ih", 1, 30_000) + b"abc"),
    "produce without a body": _frame(_header(0, 3)),
    "fetch without a body": _frame(_header(1, 4)),
    "join without a body": _frame(_header(11, 2)),
}


async def _send(address: str, data: bytes) -> bytes:
    """Send the bytes, and return what the broker sends until it closes the connection."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("what", GARBAGE)
async def test_the_connection_is_closed_and_others_are_unaffected(lab: KafkaClients, what: str) -> None:
    topic = await lab.topic()
    healthy = await lab.connection()
    assert await wire.produce(healthy, topic, wire.batch([b"before"])) == (wire.NONE, 0)

    await _send(lab.address, GARBAGE[what])

    assert await wire.produce(healthy, topic, wire.batch([b"after"])) == (wire.NONE, 1)
    assert (await wire.fetch(await lab.connection(), topic, 0))[:2] == (wire.NONE, 2)


@pytest.mark.parametrize("data", [b"", b"\x00", struct.pack(">i", 100) + b"half a frame"], ids=["none", "one", "half"])
async def test_a_client_that_goes_away_mid_request_harms_nobody(lab: KafkaClients, data: bytes) -> None:
    topic = await lab.topic()
    host, port = lab.address.split(":")
    for _ in range(30):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        writer.transport.abort()

    assert await wire.produce(await lab.connection(), topic, wire.batch([b"v"])) == (wire.NONE, 0)


async def test_a_client_that_goes_away_while_it_waits_harms_nobody(lab: KafkaClients) -> None:
    topic = await lab.topic()
    for _ in range(10):
        connection = await lab.connection()
        waiting = asyncio.ensure_future(wire.fetch(connection, topic, 0, max_wait_ms=30_000))
        await asyncio.sleep(0.02)
        waiting.cancel()
        connection.close()

    healthy = await lab.connection()
    assert await wire.produce(healthy, topic, wire.batch([b"v"])) == (wire.NONE, 0)
    assert (await wire.fetch(healthy, topic, 0))[:2] == (wire.NONE, 1)


async def test_unknown_api_versions_request_is_answered_for_a_fallback(lab: KafkaClients) -> None:
    host, port = lab.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(_frame(_header(API_VERSIONS, 999, correlation=42) + bytes(8)))
    async with asyncio.timeout(PATIENCE_S):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)

    correlation, error, count = struct.unpack(">ihi", answer[:10])
    keys = {struct.unpack(">hhh", answer[10 + 6 * n : 16 + 6 * n])[0] for n in range(count)}
    assert (correlation, error) == (42, UNSUPPORTED_VERSION)
    assert API_VERSIONS in keys
    # The connection is still good: that is how a client falls back.
    writer.write(_frame(_header(API_VERSIONS, 0, correlation=43)))
    async with asyncio.timeout(PATIENCE_S):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
    assert struct.unpack(">ih", answer[:6]) == (43, 0)
    writer.close()


async def test_requests_sent_together_are_answered_in_order(lab: KafkaClients) -> None:
    host, port = lab.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(_frame(_header(API_VERSIONS, 0, correlation=n)) for n in range(50)))
    answered = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(50):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answered.append(struct.unpack(">i", (await reader.readexactly(size))[:4])[0])
    writer.close()

    assert answered == list(range(50))


async def test_a_request_that_arrives_byte_by_byte_is_answered(lab: KafkaClients) -> None:
    host, port = lab.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for byte in _frame(_header(API_VERSIONS, 0, correlation=5)):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.001)
    async with asyncio.timeout(PATIENCE_S):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(size)
    writer.close()

    assert struct.unpack(">ih", answer[:6]) == (5, 0)
