"""Measure how long clients wait for the first op if all of them reconnect at once to an edge that was just started.

    python -m tests.bench.resume_storm [--clients 24] [--answers 200] [--chunks 1000] [--busy 8]

The log has the whole answers. The new edge knows none of them, so it reads the log for each client. Meanwhile,
``--busy`` processes use all the CPU time they can get, as other services do when everything starts again.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from schemas.ids import uuid7
from schemas.requests import Deadlines, Message, Request
from schemas.topics import REQUESTS, STREAMS
from services.bus import BusSettings, Producer, ensure_topics
from tests.support.brokers import Broker
from tests.support.bus import any_role
from tests.support.edge_answers import plain_answer
from tests.support.processes import ServiceProcess, free_port

PARTITIONS = 8
PATIENCE_S = 300


async def write(bus, answers, chunks):
    """Write the requests and the events of ``answers`` answers to the log, and return their ids.

    Each answer has ``chunks`` chunks. The events are interleaved, as if all answers had started together.
    """
    producer = Producer(bus, role=any_role(), name="bench")
    await producer.start()
    ids = [uuid7(time.time_ns() // 10**6, random.getrandbits(74)) for _ in range(answers)]
    for request_id in ids:
        request = Request(
            request_id=request_id, tenant="local", at=time.time_ns() // 1_000, source="bench",
            messages=(Message(role="user", content="hello"),), deadlines=Deadlines(total_ms=60_000),
        )  # fmt: skip
        await producer.post(REQUESTS, request)
    for events in zip(*(plain_answer(each, ["word "] * chunks) for each in ids), strict=True):
        for event in events:
            await producer.post(STREAMS, event)
    await producer.stop()
    return ids


def keep_busy(count):
    """Start ``count`` processes that use all the CPU time they can get, and return them."""
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


async def resume(http, url, request_id):
    """Return how long the first op of a request took, in seconds.

    If the edge does not answer, ask again, as clients do. Return infinity if there is no op after five minutes.
    """
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE_S:
        async with http.get(f"{url}/v1/requests/{request_id}/events") as response:
            if response.status == 200 and await response.content.readany():
                return time.monotonic() - began
        await asyncio.sleep(0.3)
    return float("inf")


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--chunks", type=int, default=1_000)
    parser.add_argument("--busy", type=int, default=8)
    given = parser.parse_args()
    busy = []
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker("embedded", Path(folder) / "data", in_memory=True)
        broker.launch()
        edge = None
        try:
            await asyncio.to_thread(broker.wait_until_ready)
            bus = BusSettings(bootstrap=broker.address, partitions=PARTITIONS)
            await ensure_topics(bus)
            ids = await write(bus, given.answers, given.chunks)
            port = free_port()
            edge = ServiceProcess(
                "services.edge", RAILBUS_KAFKA_BOOTSTRAP=broker.address, RAILBUS_PARTITIONS=str(PARTITIONS),
                RAILBUS_EDGE_PORT=str(port), RAILBUS_LOG_LEVEL="ERROR", RAILBUS_INPUT_GATE="off",
                RAILBUS_OUTPUT_CHECK="off",
            )  # fmt: skip
            await edge.ready()
            busy = keep_busy(given.busy)
            cpu_s = edge.cpu_s()
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http:
                url = f"http://127.0.0.1:{port}"
                took = await asyncio.gather(*(resume(http, url, each) for each in ids[: given.clients]))
            cpu_s = edge.cpu_s() - cpu_s
        finally:
            for each in busy:
                each.kill()
            if edge is not None:
                edge.kill()
            broker.kill()
    took.sort()
    print(
        f"{given.clients} clients, {given.answers * given.chunks:,} chunks, {given.busy} busy processes, "
        f"{os.cpu_count()} cores: first op after p50 {took[len(took) // 2]:.1f} s, max {took[-1]:.1f} s; "
        f"CPU of the edge {cpu_s:.1f} s"
    )


if __name__ == "__main__":
    asyncio.run(main())
