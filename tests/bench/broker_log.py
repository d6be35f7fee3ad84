"""Measure the log of the embedded broker: memory, start time, disk, and speed in comparison with another checkout.

    python -m tests.bench.broker_log                        10 million chunks in a data folder
    python -m tests.bench.broker_log --chunks 200000
    python -m tests.bench.broker_log --against CHECKOUT     compared with the broker of another checkout
    python -m tests.bench.broker_log --answers 200          the disk space that answers take, in a whole tree

The chunks are real events in batches of 16, over 4 partitions. Memory is the broker's largest resident set while the
chunks are written, and then while all of them are read back. The reader checks each checksum and offset. A start is
timed from the start of the process to its ready line, with an empty folder, after a stop and after a ``kill -9``.

With ``--against``, both brokers run at the same time with empty folders. One client asks them in turn, in the order
A B B A, so other work on the machine affects both alike. A hop is timed from the produce request of a batch to the
answer of a fetch that waits for this batch. After the hops, the client sends chunks to each broker as fast as it can.
`tests.bench.bus_hop --bootstrap` measures the whole bus.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil

from tests.support.brokers import Broker
from tests.support.chunk_log import (
    Connection,
    chunk_batch,
    count_chunks,
    create_topic,
    fetched,
    fill,
    send_fetch,
)
from tests.support.processes import ROOT, bare_environment, die_with_parent, free_port
from tests.support.tree import running_tree

PARTITIONS = 4
TOPIC = "chunks"
MIB = 1024 * 1024
FILL_CHUNKS = 64_000


class PeakMemory:
    """Context manager that measures the largest resident set of a process within the block. ``mib`` is the result."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._end = threading.Event()
        self.mib = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            self.mib = max(self.mib, self._process.memory_info().rss / MIB)


def kept(folder: Path, chunks: int) -> Iterator[dict[str, Any]]:
    """Write the chunks, read them back, and start the broker again several times. Yield the figures of each step."""
    empty = Broker("embedded", folder / "empty")
    yield started(empty, "start with an empty folder")
    empty.stop()
    broker = Broker("embedded", folder / "data")
    broker.start()
    try:
        connection = Connection(broker.address)
        create_topic(connection, TOPIC, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        connection.close()
        with PeakMemory(broker.pid) as peak:
            seconds, size = timed(lambda: fill(broker.address, TOPIC, PARTITIONS, chunks))
        yield {"step": "write", "chunks": chunks, "bytes": size, "s": seconds, "peak_rss_mib": round(peak.mib, 1)}
        with PeakMemory(broker.pid) as peak:
            seconds, found = timed(lambda: count_chunks(broker.address, TOPIC, range(PARTITIONS)))
        yield {"step": "read", "missing": chunks - found, "s": seconds, "peak_rss_mib": round(peak.mib, 1)}
        for end in ("stop", "kill") * 3:
            stopped_s, _ = timed(broker.stop if end == "stop" else broker.kill)
            yield started(broker, f"start after {end}") | {"end_s": stopped_s}
        found = count_chunks(broker.address, TOPIC, range(PARTITIONS))
        yield {"step": "read again", "missing": chunks - found}
    finally:
        broker.kill()


def started(broker: Broker, step: str) -> dict[str, Any]:
    seconds, _ = timed(broker.start)
    process = psutil.Process(broker.pid)
    cpu_s = sum(process.cpu_times()[:2])
    return {"step": step, "s": seconds, "cpu_s": cpu_s, "rss_mib": round(process.memory_info().rss / MIB, 1)}


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.monotonic()
    result = action()
    return round(time.monotonic() - begin, 2), result


@contextmanager
def broker_of(checkout: Path) -> Iterator[tuple[str, int]]:
    """Within the ``with`` block, run a checkout's broker with an empty folder. Yield its address and process id."""
    address = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "services.broker", "--no-auto-create-topics", "--data-dir", folder]
        process = subprocess.Popen(
            [*command, "--port", address.rpartition(":")[2]], cwd=checkout, stdout=-1, text=True,
            env=bare_environment(PYTHONPATH=str(checkout)), preexec_fn=die_with_parent,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(60)


class Arm:
    """One of the two brokers that are compared, with one connection that produces and one that fetches."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name, self.address = name, address
        self._process = psutil.Process(pid)
        self._producing, self._fetching = Connection(address), Connection(address)
        create_topic(self._producing, TOPIC, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        create_topic(self._producing, "hop", 1, {"message.timestamp.type": "LogAppendTime"})
        self._at = 0

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def hop_ms(self, batch: bytes, records: int) -> float:
        """Produce a batch of ``records`` records. Return the milliseconds until a waiting fetch has the batch."""
        send_fetch(self._fetching, "hop", 0, self._at, wait_ms=5_000)
        begin = time.perf_counter()
        self._producing.send_produce("hop", batch)
        data = fetched(self._fetching)
        passed = time.perf_counter() - begin
        assert len(data) == len(batch)
        self._producing.answer()
        self._at += records
        return passed * 1e3


def beside(other: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Measure the brokers of this checkout and of the checkout ``other``. Yield both results for each kind of load."""
    with broker_of(other) as one, broker_of(ROOT) as two:
        arms = {"other": Arm("other", *one), "this": Arm("this", *two)}
        order = [arms[name] for name in ("other", "this", "this", "other")]
        for records in (1, 16):
            batch = chunk_batch(records)
            waits: dict[str, list[float]] = {name: [] for name in arms}
            for arm in order * 100:
                arm.hop_ms(batch, records)
            before = {name: arm.cpu_s() for name, arm in arms.items()}
            for arm in order * (500 * rounds):
                waits[arm.name].append(arm.hop_ms(batch, records))
            yield {"load": f"hop, {records} to a batch"} | compared(
                {name: quantiles(each) for name, each in waits.items()}
                | {f"cpu {name}": {"cpu_us": (arm.cpu_s() - before[name]) / len(waits[name]) * 1e6}
                   for name, arm in arms.items()}
            )  # fmt: skip
        rates: dict[str, list[float]] = {name: [] for name in arms}
        before = {name: arm.cpu_s() for name, arm in arms.items()}
        for arm in order * (2 * rounds):
            seconds, _ = timed(lambda arm=arm: fill(arm.address, TOPIC, PARTITIONS, FILL_CHUNKS))
            rates[arm.name].append(FILL_CHUNKS / seconds)
        yield {"load": "as fast as it goes", "load_average": os.getloadavg()[0]} | compared(
            {name: {"chunks_per_s": statistics.median(each)} for name, each in rates.items()}
            | {f"cpu {name}": {"cpu_us": (arm.cpu_s() - before[name]) / len(rates[name]) / FILL_CHUNKS * 1e6}
               for name, arm in arms.items()}
        )  # fmt: skip


def quantiles(waits_ms: list[float]) -> dict[str, float]:
    return {"p50_ms": statistics.median(waits_ms), "p99_ms": statistics.quantiles(waits_ms, n=100)[98]}


def compared(figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return each figure for this checkout's broker and for the other checkout's broker, and the ratio of both."""
    found: dict[str, Any] = {}
    for prefix in ("", "cpu "):
        this, other = figures[f"{prefix}this"], figures[f"{prefix}other"]
        for name, value in this.items():
            found[name] = {
                "this": round(value, 3),
                "other": round(other[name], 3),
                "ratio": round(value / other[name], 3),
            }
    return found


def answered(folder: Path, answers: int) -> Iterator[dict[str, Any]]:
    """Get answers of 50 tokens from a tree without rails. Yield the size of its log, in total and by topic."""
    with running_tree(folder, "--engine", "simulated", "--no-redis", start_s=240) as tree:
        topics = folder / ".railbus" / "log" / "topics"
        body = {"model": "simulated-n50", "messages": [{"role": "user", "content": "Name the seasons."}]}
        request = urllib.request.Request(
            f"{tree.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )

        def ask(_: int) -> None:
            with urllib.request.urlopen(request, timeout=120) as response:
                assert json.load(response)["choices"][0]["message"]["content"]

        with ThreadPoolExecutor(16) as clients:
            list(clients.map(ask, range(answers)))
        time.sleep(2)  # receipts and accounts are written behind the answer
        sizes = {each.name: sum(file.stat().st_size for file in each.rglob("*.log")) for each in topics.iterdir()}
    total = sum(file.stat().st_size for file in topics.parent.rglob("*") if file.is_file())
    yield {"answers": answers, "tokens_each": 50, "bytes": total, "mb_per_1000": round(total / answers / 1000, 1)}
    yield {"bytes_per_answer": {name: size // answers for name, size in sorted(sizes.items())}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.broker_log", description=__doc__)
    parser.add_argument(
        "--chunks", type=int, default=10_000_000, help="number of chunks to write (default: %(default)s)"
    )
    parser.add_argument(
        "--against", type=Path, help="path of another checkout, whose broker is measured beside this one's"
    )
    parser.add_argument(
        "--answers",
        type=int,
        help="instead, ask this number of questions to a whole tree, and print the size of its log",
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="with --against: number of rounds of 1,000 hops (default: %(default)s)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.answers is not None:
            steps = answered(Path(folder), args.answers)
        elif args.against is not None:
            steps = beside(args.against.resolve(), args.rounds)
        else:
            steps = kept(Path(folder), args.chunks)
        for step in steps:
            print(json.dumps(step), flush=True)


if __name__ == "__main__":
    main()
