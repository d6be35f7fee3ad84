"""What the embedded broker's log costs: memory, start, and a hop over it beside another version's.

    python -m tests.bench.broker_log                        10 million chunks in a data folder
    python -m tests.bench.broker_log --chunks 200000
    python -m tests.bench.broker_log --against CHECKOUT     beside the broker of another checkout, A B B A
    python -m tests.bench.broker_log --answers 200          the disk that answers take, in a whole tree

The chunks are real events, 16 to a batch, over 4 partitions. Memory is the broker's largest resident set while they are
written, and then while all are read back; each checksum and offset is checked. A start is timed from the start of the
process to its ready line, after a stop and after a kill -9. A hop is `tests.bench.bus_hop`'s, with a broker from each
checkout in turn, each with an empty folder; the clients are this checkout's.
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

from services.bus import BusSettings
from tests.bench import bus_hop
from tests.support.brokers import Broker
from tests.support.chunk_log import Connection, count_chunks, create_topic, fill
from tests.support.processes import ROOT, bare_environment, die_with_parent, free_port
from tests.support.tree import running_tree

PARTITIONS = 4
TOPIC = "chunks"
MIB = 1024 * 1024


class PeakMemory:
    """The largest resident set of a process while the block runs, in MiB."""

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
    """Write the chunks, read them back, and start again."""
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
            seconds, _ = timed(broker.start)
            rss = psutil.Process(broker.pid).memory_info().rss / MIB
            yield {"step": f"start after {end}", "s": seconds, "end_s": stopped_s, "rss_mib": round(rss, 1)}
        found = count_chunks(broker.address, TOPIC, range(PARTITIONS))
        yield {"step": "read again", "missing": chunks - found}
    finally:
        broker.kill()


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.monotonic()
    result = action()
    return round(time.monotonic() - begin, 2), result


@contextmanager
def broker_of(checkout: Path) -> Iterator[tuple[str, int]]:
    """Run the broker of a checkout with an empty folder; yield its address and process."""
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


def beside(other: Path, rounds: int, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the hop A B B A, and return the ratios of the medians."""
    figures: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for arm in ("other", "this", "this", "other"):
            with broker_of(other if arm == "other" else ROOT) as (address, pid):
                for load in args.load:
                    settings = BusSettings(bootstrap=address)
                    found = bus_hop.measure(arm, settings, pid, load, args) | {"load_average": os.getloadavg()[0]}
                    figures.setdefault((load, arm), []).append(found)
                    yield found
    for load in args.load:
        for name in ("p50_ms", "p99_ms", "broker_us", "per_s"):
            this, before = ([each[name] for each in figures[load, arm]] for arm in ("this", "other"))
            ratio = statistics.median(this) / statistics.median(before)
            yield {"load": load, "figure": name, "this": this, "other": before, "ratio_of_medians": round(ratio, 3)}


def answered(folder: Path, answers: int) -> Iterator[dict[str, Any]]:
    """Ask a tree without rails for answers of 50 chunks; return what its log takes then, by topic."""
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
    yield {"answers": answers, "chunks_each": 50, "bytes": total, "mb_per_1000": round(total / answers / 1000, 1)}
    yield {"bytes_per_answer": {name: size // answers for name, size in sorted(sizes.items())}}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.broker_log", description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000_000, help="(%(default)s)")
    parser.add_argument("--against", type=Path, help="a checkout whose broker is measured beside this one's")
    parser.add_argument("--answers", type=int, help="ask a whole tree so often, and say what its log takes")
    parser.add_argument("--rounds", type=int, default=1, help="of A B B A (%(default)s)")
    parser.add_argument("--load", choices=bus_hop.LOADS, action="append", help="default: all")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each hop (%(default)s)")
    args = parser.parse_args()
    args.load = args.load or list(bus_hop.LOADS)
    with tempfile.TemporaryDirectory() as folder:
        if args.answers is not None:
            steps = answered(Path(folder), args.answers)
        elif args.against is not None:
            steps = beside(args.against.resolve(), args.rounds, args)
        else:
            steps = kept(Path(folder), args.chunks)
        for step in steps:
            print(json.dumps(step), flush=True)


if __name__ == "__main__":
    main()
