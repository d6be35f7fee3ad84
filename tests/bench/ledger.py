"""The ledger: how many closed requests a worker takes, and whether its parts add up to what clients waited.

    python -m tests.bench.ledger rate --requests 20000     accounts and receipts that wait on the log, one worker
    python -m tests.bench.ledger closes --requests 10000   a tree with the simulated engine, and a client beside it

``rate`` counts from the ready line until every record was taken and its changes are on the log; the books of every
request are checked against one pass of the pure code. ``closes`` asks over HTTP with a client that knows nothing of
Railbus and takes the time of each answer; a request closes if the sum of its parts is within 1 % or 0.5 ms of that.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
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


async def rate(count: int) -> dict[str, Any]:
    """Fill the log, start one worker, and wait until it has taken all."""
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


async def closes(count: int, at_once: int, *, governed: bool) -> dict[str, Any]:
    """Ask, take the time of each answer, and compare."""
    with tempfile.TemporaryDirectory() as folder, running_tree(
        Path(folder), "--engine", "simulated", "--no-redis", governed=governed, start_s=300
    ) as tree:  # fmt: skip
        waited_ms = await ask(tree.url, count, at_once)
        parts_ms = await sums_ms(tree.kafka, set(waited_ms))
    gaps_ms = sorted(abs(parts_ms[each] - waited_ms[each]) for each in waited_ms if each in parts_ms)
    near = sum(
        abs(parts_ms[each] - ms) <= max(NEAR_SHARE * ms, NEAR_MS) for each, ms in waited_ms.items() if each in parts_ms
    )
    return {
        "requests": count,
        "with_account_and_receipt": len(gaps_ms),
        "client_ms_p50": round(sorted(waited_ms.values())[count // 2], 1),
        "gap_ms": {f"p{share}": round(gaps_ms[int(share / 100 * (len(gaps_ms) - 1))], 3) for share in (50, 99, 99.9)},
        "share_that_closes": near / count,
    }


async def ask(url: str, count: int, at_once: int) -> dict[str, float]:
    """Return how long each answer took, by request id, from sending the request to the last byte."""
    waited_ms: dict[str, float] = {}
    numbers = iter(range(count))

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            body = {"model": "default", "stream": True, "max_tokens": 32,
                    "messages": [{"role": "user", "content": f"Tell me about the number {number}."}]}  # fmt: skip
            begin = time.perf_counter()
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()
            request_id = response.headers["X-Request-Id"].removeprefix("chatcmpl-")
            waited_ms[request_id] = (time.perf_counter() - begin) * 1e3

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(at_once)))
    return waited_ms


async def sums_ms(kafka: str, wanted: set[str]) -> dict[str, float]:
    """Return the sum of the parts of each request that has an account and a receipt."""
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
    return {request_id: _sum_ms(entries[request_id]) for request_id in _whole(entries) & wanted}


def _whole(entries: dict[str, Entry]) -> set[str]:
    return {
        each for each, entry in entries.items() if entry.facts is not None and entry.receipt and entry.receipt.sent_at
    }


def _sum_ms(entry: Entry) -> float:
    facts, receipt = entry.facts, entry.receipt
    assert facts is not None
    assert receipt is not None
    assert facts.request_at is not None
    assert receipt.sent_at is not None
    return sum(settle(facts.stages_us, receipt.sent_at - facts.request_at)) / 1_000


def main() -> None:
    """Print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    one = what.add_parser("rate", help="closed requests a second")
    one.add_argument("--requests", type=int, default=20_000)
    two = what.add_parser("closes", help="parts against a client's wall time")
    two.add_argument("--requests", type=int, default=1_000)
    two.add_argument("--at-once", type=int, default=4)
    two.add_argument("--no-governed", action="store_true", help="without rails and safety")
    options = parser.parse_args()
    if options.what == "rate":
        print(json.dumps(uvloop.run(rate(options.requests))))
    else:
        print(json.dumps(uvloop.run(closes(options.requests, options.at_once, governed=not options.no_governed))))


if __name__ == "__main__":
    main()
