"""Measure the memory of an edge under floods from clients without an API key, in comparison with an idle edge.

    python -m tests.bench.edge_floods [--seconds 6] [--sockets 500] [--one-edge]

The edge is a separate process and uses the embedded broker. Its limits are the defaults, except the limit on
connections per address, because all floods come from one address. Each flood gets a new edge, unless ``--one-edge`` is
given. The edge's resident memory is sampled ten times a second.

Exit code 1 means that a flood made an edge need at least twice the memory of an idle edge.
"""

import argparse
import asyncio
import gzip
import json
import sys
import tempfile
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
from websockets.asyncio.client import connect

from services.bus import BusSettings, ensure_topics
from tests.support.brokers import Broker
from tests.support.processes import ServiceProcess, free_port

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
SOCKET = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
PAUSE_S = 0.02
MOST_TIMES = 2.0
"""Limit on the memory during a flood, as a multiple of the memory of an idle edge."""


async def hold(port, sent, seconds):
    """Open a connection, send ``sent`` once, and keep the connection open for some seconds without reading."""
    with suppress(OSError, asyncio.IncompleteReadError):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
        writer.transport.pause_reading()
        writer.write(sent)
        await asyncio.sleep(seconds)
        writer.transport.abort()


async def again(port, sent, seconds):
    """Send ``sent`` again and again for some seconds, and never read the responses."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with suppress(OSError, TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
            writer.transport.pause_reading()
            for _ in range(20):
                writer.write(sent)
                await asyncio.wait_for(writer.drain(), 1)
                await asyncio.sleep(PAUSE_S)
            writer.transport.abort()


async def refs(port, _, seconds):
    """Send invalid websocket messages with a large ``ref`` for some seconds, and never read the replies."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with suppress(Exception):
            async with connect(
                f"ws://127.0.0.1:{port}/v1/stream", max_queue=1, open_timeout=2, close_timeout=0.1
            ) as socket:
                for number in range(20):
                    await asyncio.wait_for(
                        socket.send(json.dumps({"type": "nonsense", "ref": f"{number}" + "x" * 900_000})), 1
                    )


async def silent_sockets(port, _, seconds):
    with suppress(Exception):
        async with connect(f"ws://127.0.0.1:{port}/v1/stream", open_timeout=2, close_timeout=0.1):
            await asyncio.sleep(seconds)


def body(text):
    return HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(text), text)


def question(chars):
    return body(json.dumps({"messages": [{"role": "user", "content": "x" * chars}], "stream": True}).encode())


BOMB = gzip.compress(b" " * 100_000_000)
FLOODS = {
    "silent connections": (hold, b"", 1.0),
    "half a head": (hold, HEAD + b"X-Slow: ", 1.0),
    "half a body": (hold, HEAD + b"Content-Length: 900000\r\n\r\n" + b" " * 800_000, 0.2),
    "half a websocket message": (hold, SOCKET + b"\x81\xff" + (900_000).to_bytes(8, "big") + bytes(800_004), 0.2),
    "long heads": (again, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 100_000, 0.1),
    "questions of 250,000 characters, answers unread": (again, question(250_000), 0.05),
    "short questions, answers unread": (again, question(10), 0.1),
    "deeply nested bodies": (again, body(b"[" * 500_000), 0.05),
    "gzip bombs": (again, HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(BOMB), BOMB), 0.05),
    "websockets without a hello": (silent_sockets, b"", 0.3),
    "websockets that read no replies": (refs, b"", 0.05),
}
"""For each flood: the function that makes it, the bytes that it sends, and its number of sockets as a share of all."""


async def most_mib(process, flood):
    most = 0.0
    while not flood.done():
        most = max(most, process.memory_info().rss / 2**20)
        await asyncio.sleep(0.1)
    await flood
    return most


@asynccontextmanager
async def an_edge(broker):
    """Within the ``async with`` block, run an edge. Yield its process, its port, and its memory when idle, in MiB."""
    port = free_port()
    edge = ServiceProcess(
        "services.edge", RAILBUS_KAFKA_BOOTSTRAP=broker.address, RAILBUS_PARTITIONS="2",
        RAILBUS_EDGE_PORT=str(port), RAILBUS_MAX_ADDRESS_CONNECTIONS="100000", RAILBUS_LOG_LEVEL="ERROR",
    )  # fmt: skip
    try:
        await edge.ready()
        await asyncio.sleep(3)
        process = psutil.Process(edge.pid)
        yield process, port, process.memory_info().rss / 2**20
    finally:
        edge.kill()


async def strike(names, edge, given):
    """Make one flood after another against an edge, and print a row for each flood.

    Return the most memory that the edge had, as a multiple of its memory when idle.

    Args:
        names: Names of the floods.
        edge: What ``an_edge`` yields.
        given: Options of the command line.
    """
    process, port, idle_mib = edge
    most = 0.0
    for name in names:
        made, sent, share = FLOODS[name]
        count = max(int(given.sockets * share), 1)
        flood = asyncio.gather(*(made(port, sent, given.seconds) for _ in range(count)))
        mib = await most_mib(process, flood)
        await asyncio.sleep(3)
        after = process.memory_info().rss / 2**20
        print(f"| {name} | {count} | {idle_mib:.0f} | {mib:.0f} | {mib / idle_mib:.2f} | {after:.0f} |", flush=True)
        most = max(most, mib / idle_mib)
    return most


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--sockets", type=int, default=500)
    parser.add_argument("--one-edge", action="store_true", help="send all floods to the same edge")
    given = parser.parse_args()
    most = 0.0
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker("embedded", Path(folder) / "data", in_memory=True)
        broker.launch()
        try:
            await asyncio.to_thread(broker.wait_until_ready)
            await ensure_topics(BusSettings(bootstrap=broker.address, partitions=2))
            print("| flood | sockets | idle MiB | most MiB | times | MiB 3 s after |\n|---|---|---|---|---|---|")
            for names in [[*FLOODS]] if given.one_edge else [[name] for name in FLOODS]:
                async with an_edge(broker) as edge:
                    most = max(most, await strike(names, edge, given))
        finally:
            broker.kill()
    return int(most >= MOST_TIMES)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
