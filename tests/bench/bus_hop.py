"""What one hop over the bus costs: latency from ``post`` to the handler, and CPU of producer, consumers and broker.

    python -m tests.bench.bus_hop                           starts the embedded broker and, if it can, Apache Kafka
    python -m tests.bench.bus_hop --bootstrap HOST:PORT     uses a broker that is there

Loads: ``urgent`` sends 1,000 events of 300 bytes a second that must go at once; ``chunks`` sends what 64 streams of one
chunk every 20 ms send, unsynchronised, over 4 partitions, and two consumers decode all of it. Each load is a producer
process and consumer processes; times are compared on one machine's wall clock.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from schemas.ids import uuid7
from schemas.stream import Chunk
from schemas.topics import STREAMS
from services.bus import BusSettings, Producer, TailReader, ensure_topics
from services.runtime.clock import now_ms, now_us

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Load:
    """Streams that each send one event every ``every_s``, to ``consumers`` processes that read everything."""

    streams: int
    every_s: float
    consumers: int
    urgent: bool
    text: str


LOADS = {
    # A whole record, key, headers and JSON, is about 300 bytes with this text.
    "urgent": Load(streams=20, every_s=0.020, consumers=1, urgent=True, text="x" * 60),
    "chunks": Load(streams=64, every_s=0.020, consumers=2, urgent=False, text=" token"),
}


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    return time.process_time()


async def produce(bootstrap: str, load: Load, seconds: float, linger_ms: float | None, dry: bool) -> dict[str, Any]:
    """Sends the load and says what that cost."""
    settings = BusSettings(bootstrap=bootstrap, **({} if linger_ms is None else {"linger_ms": linger_ms}))
    producer = Producer(settings, name="bench")
    await producer.start()
    sent = 0
    begin = time.monotonic() + 0.3

    async def stream(phase_s: float) -> None:
        nonlocal sent
        request_id = uuid7(now_ms(), random.getrandbits(74))
        at = begin + phase_s
        for seq in range(int(seconds / load.every_s)):
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            at += load.every_s
            event = Chunk(
                request_id=request_id,
                tenant="bench",
                at=now_us(),
                source="bench/1",
                attempt=1,
                run="0123456789abcdef",
                seq=0 if load.urgent else seq + 1,
                start=seq * 6,
                text=load.text,
            )
            if not dry:
                await producer.post(STREAMS, event)
            sent += 1

    cpu = cpu_s()
    await asyncio.gather(*(stream(random.uniform(0, load.every_s)) for _ in range(load.streams)))
    took = time.monotonic() - begin
    cpu = cpu_s() - cpu
    await producer.stop()
    return {"sent": sent, "per_s": sent / took, "cpu_s": cpu}


async def consume(bootstrap: str, seconds: float) -> dict[str, Any]:
    """Reads everything from the end on and says when it came and what that cost."""
    waits: list[int] = []
    fetches = 0

    def handler(events: Any) -> None:
        nonlocal fetches
        now = now_us()
        fetches += 1
        waits.extend(now - received.event.at for received in events)

    settings = BusSettings(bootstrap=bootstrap)
    reader = TailReader(settings, handler=handler)
    run = asyncio.create_task(reader.run())
    for partition in range(settings.partitions):
        await reader.follow(STREAMS, partition, "end")
    await asyncio.sleep(0.3)
    print("following", flush=True)
    cpu = cpu_s()
    await asyncio.sleep(seconds + 2)
    cpu = cpu_s() - cpu
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    waits.sort()
    quantiles = {f"p{q}_ms": round(waits[min(len(waits) - 1, len(waits) * q // 100)] / 1000, 2) for q in (50, 95, 99)}
    return {"received": len(waits), "fetches": fetches, "cpu_s": cpu, **quantiles}


def measure(bootstrap: str, broker_pid: int | None, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Runs one load in processes of its own."""
    import psutil

    uvloop.run(ensure_topics(BusSettings(bootstrap=bootstrap)))
    base = [sys.executable, "-m", "tests.bench.bus_hop", "--bootstrap", bootstrap, "--load", name]
    base += ["--seconds", str(args.seconds)]
    consumers = [
        subprocess.Popen([*base, "--role", "consume"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(LOADS[name].consumers)
    ]
    for consumer in consumers:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "following\n"
    broker = psutil.Process(broker_pid) if broker_pid else None
    before = sum(broker.cpu_times()[:2]) if broker else 0.0
    linger = [] if args.linger_ms is None else ["--linger-ms", str(args.linger_ms)]
    produced = json.loads(_output([*base, "--role", "produce", *linger], args.seconds))
    broker_s = sum(broker.cpu_times()[:2]) - before if broker else None
    read = [json.loads(consumer.communicate(timeout=args.seconds + 30)[0]) for consumer in consumers]
    idle = json.loads(_output([*base, "--role", "dry"], args.seconds))
    count = produced["sent"]

    def each(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds / count * 1e6, 1)

    return {
        "load": name,
        "sent": count,
        "per_s": round(produced["per_s"]),
        "received": [one["received"] for one in read],
        "fetches": [one["fetches"] for one in read],
        **{q: max(one[q] for one in read) for q in ("p50_ms", "p95_ms", "p99_ms")},
        "us_each": {
            "producer": each(produced["cpu_s"] - idle["cpu_s"]),
            "consumers": [each(one["cpu_s"]) for one in read],
            "broker": each(broker_s),
            "load itself": each(idle["cpu_s"]),
        },
    }


def _output(command: list[str], seconds: float) -> str:
    return subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=seconds + 60, check=True
    ).stdout.splitlines()[-1]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bus_hop", description=__doc__)
    parser.add_argument("--bootstrap", help="a running broker as HOST:PORT")
    parser.add_argument("--broker-pid", type=int, help="its process, to measure its CPU")
    parser.add_argument("--load", choices=LOADS, action="append", help="default: all")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--linger-ms", type=float, help="default: the product's")
    parser.add_argument("--role", choices=("produce", "dry", "consume"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        load = LOADS[args.load[0]]
        if args.role == "consume":
            work = consume(args.bootstrap, args.seconds)
        else:
            work = produce(args.bootstrap, load, args.seconds, args.linger_ms, dry=args.role == "dry")
        print(json.dumps(uvloop.run(work)))
        return
    for name in args.load or LOADS:
        print(json.dumps(measure(args.bootstrap, args.broker_pid, name, args)))


if __name__ == "__main__":
    main()
