"""Measure one hop over the bus: latency from ``post`` to the handler, and CPU of producer, consumers and broker.

    python -m tests.bench.bus_hop                           starts the embedded broker and, where it can, Apache Kafka
    python -m tests.bench.bus_hop --bootstrap HOST:PORT     uses a running broker (--broker-pid for its CPU)

There are three loads. ``urgent`` sends 1,000 events of 300 bytes per second, each of which must be sent at once.
``chunks`` is 64 unsynchronised streams, each of which sends a chunk every 20 ms, over 4 partitions. Two consumers each
decode all of these events. ``flood`` sends as fast as it can.

Producer and consumers are separate processes. All processes use the wall clock of the same machine. The producer's CPU
time leaves out the cost of making the events. That cost is measured in a separate run, and printed as ``load_us``.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from schemas.ids import uuid7
from schemas.stream import Chunk
from schemas.topics import STREAMS
from services.bus import BusSettings, Producer, TailReader, ensure_topics
from services.runtime.clock import now_ms, now_us
from tests.support.brokers import Broker, BrokerUnavailable

ROOT = Path(__file__).resolve().parents[2]
WARM_S = 2.0
"""Seconds of traffic before the measurement. In this time, the JIT compiles Apache Kafka and clients fetch metadata."""


@dataclass(frozen=True, slots=True)
class Load:
    """Streams that each send one event every ``every_s`` seconds, and consumers that each read all events.

    With ``urgent``, the producer must send each event at once.
    """

    streams: int
    every_s: float
    consumers: int
    urgent: bool
    text: str


LOADS = {
    # A whole record, key, headers and JSON, is about 300 bytes with these texts.
    "urgent": Load(streams=20, every_s=0.020, consumers=1, urgent=True, text="x" * 40),
    "chunks": Load(streams=64, every_s=0.020, consumers=2, urgent=False, text=" token"),
    "flood": Load(streams=64, every_s=0.0, consumers=1, urgent=False, text=" token"),
}


async def produce(settings: BusSettings, load: Load, seconds: float, *, dry: bool) -> dict[str, Any]:
    """Send the load. Return the number of events, the time span of the measurement, and the CPU time.

    With ``dry``, make the events but do not send them.
    """
    producer = Producer(settings, role="generator", name="bench")
    await producer.start()
    sent = 0
    from_us: int | None = None
    begin = time.monotonic()
    end = begin + WARM_S + seconds

    async def stream(phase_s: float) -> None:
        nonlocal sent
        request_id = uuid7(now_ms(), random.getrandbits(74))
        at, seq = begin + phase_s, 0
        while at < end and time.monotonic() < end:
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            at += load.every_s
            seq += 1
            event = Chunk(
                request_id=request_id, tenant="bench", at=now_us(), source="bench/1", attempt=1,
                run="0123456789abcdef", seq=0 if load.urgent else seq, start=seq * 6, text=load.text,
            )  # fmt: skip
            if not dry:
                await producer.post(STREAMS, event)
            sent += from_us is not None and event.at >= from_us

    streams = asyncio.gather(*(stream(random.uniform(0, load.every_s)) for _ in range(load.streams)))
    await asyncio.sleep(WARM_S)
    cpu, from_us = time.process_time(), now_us()
    await streams
    cpu = time.process_time() - cpu
    await producer.stop()
    return {"sent": sent, "from_us": from_us, "to_us": now_us(), "cpu_s": cpu}


async def consume(settings: BusSettings) -> dict[str, Any]:
    """Read new events until stdin has a line. Return the number of events, their latency, and the CPU time.

    The line is the result of ``produce`` as JSON. It has the time span of the measurement.
    """
    arrivals: list[tuple[int, int]] = []
    cpu_at: list[tuple[int, float]] = []

    def handler(events: Any) -> None:
        now = now_us()
        cpu_at.append((now, time.process_time()))
        arrivals.extend((received.event.at, now) for received in events)

    reader = TailReader(settings, handler=handler)
    run = asyncio.create_task(reader.run())
    for partition in range(settings.partitions):
        await reader.follow(STREAMS, partition, "end")
    print("following", flush=True)
    window = json.loads(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.sleep(0.5)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    inside = [cpu for at, cpu in cpu_at if window["from_us"] <= at <= window["to_us"]]
    waits = sorted(now - at for at, now in arrivals if at >= window["from_us"])
    quantiles = {f"p{q}_ms": waits[min(len(waits) - 1, len(waits) * q // 100)] / 1000 for q in (50, 95, 99)}
    return {"received": len(waits), "fetches": len(inside), "cpu_s": inside[-1] - inside[0], **quantiles}


def measure(broker: str, settings: BusSettings, pid: int | None, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one load, with producer and consumers in separate processes, and return its figures.

    Args:
        broker: Kind of the broker, for the output.
        settings: Settings with the broker's address.
        pid: Id of the broker's process, or None if its CPU time cannot be measured.
        name: Name of the load.
        args: Options of the command line.
    """
    import psutil

    uvloop.run(ensure_topics(settings))
    base = [sys.executable, "-m", "tests.bench.bus_hop", "--bootstrap", settings.bootstrap, "--load", name]
    base += ["--seconds", str(args.seconds), "--linger-ms", str(settings.linger_ms)]
    consumers = [
        subprocess.Popen([*base, "--role", "consume"], cwd=ROOT, stdin=-1, stdout=-1, text=True)
        for _ in range(LOADS[name].consumers)
    ]
    for consumer in consumers:
        assert consumer.stdout is not None
        assert consumer.stdout.readline() == "following\n"
    family = [] if pid is None else [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    before = sum(sum(process.cpu_times()[:2]) for process in family)
    produced = _run([*base, "--role", "produce"], args.seconds)
    broker_s = sum(sum(process.cpu_times()[:2]) for process in family) - before
    read = [json.loads(consumer.communicate(json.dumps(produced) + "\n", timeout=60)[0]) for consumer in consumers]
    idle = _run([*base, "--role", "dry"], args.seconds)
    count = max(1, produced["sent"])
    load_us = idle["cpu_s"] / max(1, idle["sent"]) * 1e6
    return {
        "broker": broker,
        "load": name,
        "per_s": round(count / args.seconds),
        "missing": [count - one["received"] for one in read],
        **{q: round(max(one[q] for one in read), 2) for q in ("p50_ms", "p95_ms", "p99_ms")},
        "producer_us": round(produced["cpu_s"] / count * 1e6 - load_us, 1),
        "consumer_us": [round(one["cpu_s"] / max(1, one["received"]) * 1e6, 1) for one in read],
        # The broker's CPU time includes the warm-up, so only the measured share of it is taken.
        "broker_us": round(broker_s / count * 1e6 * args.seconds / (args.seconds + WARM_S), 1) if family else None,
        "load_us": round(load_us, 1),
        "events_a_fetch": round(read[0]["received"] / max(1, read[0]["fetches"]), 1),
    }


def _run(command: list[str], seconds: float) -> dict[str, Any]:
    limit_s = WARM_S + seconds + 60
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@contextmanager
def _brokers(args: argparse.Namespace) -> Iterator[list[tuple[str, str, int | None]]]:
    """Start the embedded broker and Apache Kafka, or use the broker of ``--bootstrap`` instead.

    Yield the kind, address and process id of each broker. A broker that cannot run here is left out.
    """
    if args.bootstrap:
        yield [("given", args.bootstrap, args.broker_pid)]
        return
    with tempfile.TemporaryDirectory() as folder:
        started: list[Broker] = []
        try:
            for kind in ("embedded", "kafka"):
                try:
                    broker = Broker(kind, Path(folder) / kind)
                    broker.start()
                    started.append(broker)
                except BrokerUnavailable as missing:
                    print(f"{kind}: not measured, {missing}", file=sys.stderr)
            yield [(broker.kind, broker.address, broker.pid) for broker in started]
        finally:
            for broker in started:
                broker.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bus_hop", description=__doc__)
    parser.add_argument("--bootstrap", help="HOST:PORT of a running broker to use")
    parser.add_argument(
        "--broker-pid", type=int, help="process id of the broker of --bootstrap, to measure its CPU time"
    )
    parser.add_argument("--load", choices=LOADS, action="append", help="load to measure; repeatable (default: all)")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--linger-ms",
        type=float,
        default=BusSettings().linger_ms,
        help="linger time of the producer, in ms (default: %(default)s)",
    )
    parser.add_argument("--role", choices=("produce", "dry", "consume"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        settings = BusSettings(bootstrap=args.bootstrap, linger_ms=args.linger_ms)
        if args.role == "consume":
            result = uvloop.run(consume(settings))
        else:
            result = uvloop.run(produce(settings, LOADS[args.load[0]], args.seconds, dry=args.role == "dry"))
        print(json.dumps(result))
        return
    with _brokers(args) as brokers:
        for kind, address, pid in brokers:
            for name in args.load or LOADS:
                settings = BusSettings(bootstrap=address, linger_ms=args.linger_ms)
                print(json.dumps(measure(kind, settings, pid, name, args)), flush=True)


if __name__ == "__main__":
    main()
