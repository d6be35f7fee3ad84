"""Measure how fast the ledger reads, and whether the times of a request's parts add up to the time its client waited.

    python -m tests.bench.ledger rate --requests 20000
    python -m tests.bench.ledger closes --requests 10000

``rate`` writes accounts and receipts to the log, and then starts one ledger process. It measures the time from when the
process is ready until it has read every record and has written the resulting changes to the log. It then checks that
the total of the ledger has the right number of requests.

``closes`` starts the services with the simulated engine, and sends requests over HTTP with clients that use none of
Railbus's code. For each answer, a client measures the time from sending the request until the kernel has the last byte.
``share_that_closes`` is the share of requests for which the sum of the parts differs from this time by at most 1 % or
0.5 ms, whichever is more. With ``--cores-of-their-own``, edge and clients have priority over all other processes, as if
each of them had its own core. This option needs root on Linux.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from schemas.side_events import Account, Detached
from schemas.topics import ACCOUNTS, RECEIPTS
from services.books import Entry, facts_of, receipt_of
from services.bus import BusSettings, Received, TailReader
from services.stream.latency import settle
from tests.integration.ledger.lab import a_lab, a_request
from tests.support.tree import running_tree

SETTLE_S = 60.0
NEAR_SHARE, NEAR_MS = 0.01, 0.5

WARM_UP = 20
"""Number of requests that are sent first and not counted, because the first requests of a process take longer."""

_FIRST = 10  # a real-time priority of the kernel; they are 1 to 99


async def rate(count: int) -> dict[str, Any]:
    """Write the accounts and receipts of ``count`` requests to the log, and measure how fast one ledger reads them."""
    dice = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        async with a_lab(Path(folder)) as lab:
            for number in range(count):
                await lab.send(*a_request(number, dice))
            await asyncio.sleep(1.0)
            await lab.start_ledger(RAILBUS_LEDGER_WINDOW_S="60", RAILBUS_LEDGER_KEEP_S="600")
            process = psutil.Process(lab.ledger.pid)
            begin, cpu_s = time.monotonic(), lab.ledger.cpu_s()
            while await _taken(lab.port) < 2 * count:  # noqa: ASYNC110 - the ledger is another process
                await asyncio.sleep(0.25)
            took_s, cpu_s = time.monotonic() - begin, lab.ledger.cpu_s() - cpu_s
            report = await lab.report()
            return {
                "requests": count,
                "seconds": round(took_s, 2),
                "requests_per_s": round(count / took_s),
                "cpu_us_per_request": round(cpu_s / count * 1e6),
                "requests_per_cpu_s": round(count / cpu_s),
                "rss_mib": round(process.memory_info().rss / 2**20),
                "sums_are_right": report["total"]["requests"] == count,
            }


async def _taken(port: int) -> int:
    async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("railbus_ledger_read_total"))


@dataclass(frozen=True, slots=True)
class Waited:
    """The times of one answer as its client saw it, by the wall clock.

    Attributes:
        begin_ms: When the client sent the request.
        end_ms: When the kernel of the client's host received the last byte.
        read_ms: When the client's process read the last byte.
    """

    begin_ms: float
    end_ms: float
    read_ms: float

    @property
    def ms(self) -> float:
        return self.end_ms - self.begin_ms


async def closes(
    count: int, at_once: int, max_tokens: int, *, model: str, governed: bool, own_cores: bool
) -> dict[str, Any]:
    """Measure how long clients wait for answers. Compare each wait with the sum of its parts (prefill, decode, ...).

    Args:
        count: Number of requests.
        at_once: Number of clients. Each client sends one request at a time.
        max_tokens: Maximum number of tokens of an answer.
        model: Name of the model to ask.
        governed: Whether rails and safety run.
        own_cores: Whether edge and clients have priority over all other processes.
    """
    with tempfile.TemporaryDirectory() as folder, running_tree(
        Path(folder), "--engine", "simulated", "--no-redis", governed=governed, start_s=300
    ) as tree:  # fmt: skip
        if own_cores:
            run_first(tree.pid("edge"))
            run_first(os.getpid(), inherited=True)  # client processes inherit the priority of their parent
        await ask(tree.url, WARM_UP, 1, max_tokens, model)
        waited = await ask(tree.url, count, at_once, max_tokens, model)
        if own_cores:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        entries = await entries_of(tree.kafka, set(waited))
    gaps = {each: waited[each].ms - sum_ms(entry) for each, entry in entries.items()}
    before = [_at_ms(entry)[0] - waited[each].begin_ms for each, entry in entries.items()]
    after = [waited[each].end_ms - _at_ms(entry)[1] for each, entry in entries.items()]
    unread = [each.read_ms - each.end_ms for each in waited.values()]
    return {
        "requests": len(waited),
        "with_account_and_receipt": len(gaps),
        "before_the_edge_ms": _percentiles(before),
        "after_the_edge_ms": _percentiles(after),
        "client_read_it_later_ms": _percentiles(unread),
        "all": _closing(waited, gaps),
        **{
            outcome: _closing(
                {each: waited[each] for each, entry in entries.items() if _outcome(entry) == outcome}, gaps
            )
            for outcome in sorted({_outcome(entry) for entry in entries.values()})
        },
    }


def run_first(pid: int, *, inherited: bool = False) -> None:
    """Give a process real-time priority, so that it runs before all normal processes.

    By default, every thread of the process gets the priority. If ``inherited`` is true, only the main thread gets the
    priority, and child processes that this thread starts later inherit the priority.

    Raises:
        SystemExit: The user is not allowed to set real-time priorities.
    """
    try:
        for thread in [pid] if inherited else [each.id for each in psutil.Process(pid).threads()]:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(_FIRST))
    except PermissionError:
        raise SystemExit("--cores-of-their-own needs the right to set real-time priorities: run it as root") from None


def _outcome(entry: Entry) -> str:
    assert entry.facts is not None
    return entry.facts.outcome


def _closing(waited: dict[str, Waited], gaps: dict[str, float]) -> dict[str, Any]:
    """Return percentiles of the clients' times and of the gaps, and the share of requests with a small gap.

    A gap is the time that a client measured minus the summed durations of the request's parts. A gap is small if its
    absolute value is at most ``NEAR_SHARE`` of the client's time or ``NEAR_MS``, whichever is more.
    """
    known = [each for each in waited if each in gaps]
    near = sum(abs(gaps[each]) <= max(NEAR_SHARE * waited[each].ms, NEAR_MS) for each in known)
    return {
        "requests": len(waited),
        "client_ms": _percentiles([each.ms for each in waited.values()]),
        "gap_ms": _percentiles([gaps[each] for each in known]),
        "share_that_closes": round(near / len(waited), 5),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{share}": round(ordered[int(share / 100 * (len(ordered) - 1))], 3) for share in (50, 95, 99, 99.9)}


async def ask(url: str, count: int, at_once: int, max_tokens: int, model: str = "default") -> dict[str, Waited]:
    """Send ``count`` requests from ``at_once`` client processes. Return the times of each answer, by request id.

    Each client process runs ``tests.bench.kit.stopwatch``.
    """
    host, port = url.removeprefix("http://").split(":")
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.kit.stopwatch", host, port, model, str(count // at_once), str(first),
            str(at_once), str(max_tokens), stdout=asyncio.subprocess.PIPE,
        )
        for first in range(at_once)
    ]  # fmt: skip
    printed = await asyncio.gather(*(client.communicate() for client in clients))
    if any(client.returncode for client in clients):
        raise SystemExit("a client ended with an error, see above")
    lines = [json.loads(line) for out, _ in printed for line in out.splitlines()]
    return {line["id"]: Waited(line["begin"] * 1e3, line["end"] * 1e3, line["read"] * 1e3) for line in lines}


async def entries_of(kafka: str, wanted: set[str]) -> dict[str, Entry]:
    """Return the account and the receipt of each wanted request that has both on the log.

    Wait at most a minute until all of them have both.
    """
    bus = BusSettings(bootstrap=kafka)
    entries: dict[str, Entry] = {}

    def take(records: Any) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Account | Detached):
                event = record.event
                one = isinstance(event, Account)
                news = Entry(facts=facts_of(event)) if one else Entry(receipt=receipt_of(event))  # type: ignore[arg-type]
                entries[event.request_id] = entries.get(event.request_id, Entry()).join(news)

    reader = TailReader(bus, handler=take)
    reading = asyncio.create_task(reader.run())
    for topic in (ACCOUNTS, RECEIPTS):
        for number in range(bus.partitions):
            await reader.follow(topic, number, 0)
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline and len(_whole(entries) & wanted) < len(wanted):  # noqa: ASYNC110 - a reader has no event
        await asyncio.sleep(0.1)
    reading.cancel()
    return {request_id: entries[request_id] for request_id in _whole(entries) & wanted}


def _whole(entries: dict[str, Entry]) -> set[str]:
    return {
        each for each, entry in entries.items() if entry.facts is not None and entry.receipt and entry.receipt.sent_at
    }


def _at_ms(entry: Entry) -> tuple[float, float]:
    """Return when the edge received the request and when it sent the last byte, in milliseconds since the epoch."""
    assert entry.facts is not None
    assert entry.receipt is not None
    assert entry.facts.request_at is not None
    assert entry.receipt.sent_at is not None
    return entry.facts.request_at / 1_000, entry.receipt.sent_at / 1_000


def sum_ms(entry: Entry) -> float:
    """Return the summed durations of a request's parts (prefill, decode, ..., delivery), in milliseconds."""
    assert entry.facts is not None
    received_ms, sent_ms = _at_ms(entry)
    return sum(settle(entry.facts.stages_us, round((sent_ms - received_ms) * 1_000))) / 1_000


def main() -> None:
    """Run the measurement that the command line names, and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    one = what.add_parser("rate", help="measure how many closed requests per second the ledger reads")
    one.add_argument("--requests", type=int, default=20_000)
    two = what.add_parser("closes", help="compare the sum of a request's parts with the time that its client measured")
    two.add_argument("--requests", type=int, default=1_000)
    two.add_argument("--at-once", type=int, default=4)
    two.add_argument("--max-tokens", type=int, default=32)
    two.add_argument("--tokens", type=int, help="tokens of each answer (default: random, up to --max-tokens)")
    two.add_argument("--no-governed", action="store_true", help="run without rails and safety")
    two.add_argument(
        "--cores-of-their-own", action="store_true", help="give edge and clients priority over all other processes"
    )
    options = parser.parse_args()
    if options.what == "rate":
        print(json.dumps(uvloop.run(rate(options.requests))))
    else:
        model = "default" if options.tokens is None else f"simulated-n{options.tokens}"
        most = options.tokens or options.max_tokens
        found = closes(
            options.requests, options.at_once, most, model=model, governed=not options.no_governed,
            own_cores=options.cores_of_their_own,
        )  # fmt: skip
        print(json.dumps(uvloop.run(found)))


if __name__ == "__main__":
    main()
