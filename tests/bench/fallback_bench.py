"""Measure fallbacks to the cloud. Generator (simulated engine), router, Vertex worker and emulator run as processes.

    python -m tests.bench.fallback_bench cases      the engine without a fault and with each fault, five requests each
    python -m tests.bench.fallback_bench deadline   first token from the cloud, if the engine is silent
    python -m tests.bench.fallback_bench race       modes ``race`` and ``cancel``, if some first tokens are very late

Times are differences between timestamps of events on the log. All processes use the clock of one machine. Each command
prints a Markdown table. With ``--json``, it also prints all figures.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import uvloop

from schemas.requests import Deadlines, Sampling
from schemas.side_events import Account
from schemas.stream import Chunk, Closed, Cutover, Started
from schemas.topics import STREAMS
from services.bus import Received, UnreadableRecord
from services.stream import Screen, apply
from tests.bench.router_bench import percentiles
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents

CASES = {
    "healthy": "simulated-n20",
    "late first token": "simulated-n20-slow2000",
    "never a token": "simulated-n20-mute",
    "503": "simulated-err503",
    "dies before the first": "simulated-n20-die0",
    "dies after 5": "simulated-n50-die5",
    "stalls after 5": "simulated-n50-stall5",
}


class Path:
    """The running router, generator, Vertex worker and Vertex emulator, and the requests that they answer."""

    def __init__(self, lab: RouterLab) -> None:
        self.lab = lab
        self.people: dict[str, RequestEvents] = {}
        self.closed: dict[str, asyncio.Event] = {}
        lab.watch = self._on_records

    async def start(self, ttft_ms: int, tail_ms: int = 0, **router: str) -> None:
        """Start all processes.

        Args:
            ttft_ms: Time to the first token from the cloud.
            tail_ms: Scale of a random, heavy-tailed delay that is added to ``ttft_ms``.
            router: Environment variables of the router, in addition to those that this method sets.
        """
        lab = self.lab
        emulator = lab.start(
            "services.devtools.vertex", f"--ttft-ms={ttft_ms}", f"--tail-ms={tail_ms}", "--gap-ms=50", "--words=20"
        )
        url = await emulator.ready()
        ratio = {
            "RAILBUS_FALLBACK_RATIO": "1",
            "RAILBUS_FALLBACK_FREE": "1000000",
            "RAILBUS_BREAKER_TRIP": "0",
            "RAILBUS_RETRIES": "0",
        }
        router_ready = lab.run(RAILBUS_FALLBACK="vertex", **(ratio | router))
        generator = lab.start("services.generator", RAILBUS_ENGINE="simulated", RAILBUS_GENERATOR_SLOTS="256")
        vertex = lab.start("services.vertex", RAILBUS_VERTEX_URL=url, RAILBUS_VERTEX_MODEL="any")
        await asyncio.gather(router_ready, generator.ready(), vertex.ready())

    async def ask(self, model: str, **fields: Any) -> RequestEvents:
        """Write one request for a model to the log, and return it. ``fields`` are more fields of the request."""
        person = RequestEvents(model=model, sampling=Sampling(max_tokens=50), **fields)
        self.people[person.id] = person
        self.closed[person.id] = asyncio.Event()
        await self.lab.post(person.request)
        return person

    async def settled(self) -> None:
        """Wait until every request is closed, and 1.5 s longer, so that the accounts are written."""
        async with asyncio.timeout(120):
            for closed in self.closed.values():
                await closed.wait()
        await asyncio.sleep(1.5)  # the accounts wait for the usage of cancelled workers

    def _on_records(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Closed):
                self.closed[record.event.request_id].set()

    def told(self) -> dict[str, dict[str, Any]]:
        """Return for each request its times, and whether its reader saw exactly the text of one attempt."""
        logs: dict[str, list[Any]] = {rid: [] for rid in self.people}
        for record in self.lab.log:
            if record.topic == STREAMS.name:
                logs[record.event.request_id].append(record.event)  # type: ignore[union-attr]
        return {rid: _told(self.people[rid], events) for rid, events in logs.items()}


def _told(person: RequestEvents, events: list[Any]) -> dict[str, Any]:
    screen, shown = Screen(person.id), ""
    first_us: dict[int, int] = {}
    said: dict[int, str] = {}
    began = {event.attempt: event.at for event in reversed(events) if isinstance(event, Started)}
    for event in events:
        for op in screen.feed(event):
            shown = apply(shown, op)
        if isinstance(event, Chunk):
            said[event.attempt] = said.get(event.attempt, "") + event.text
            voice = screen.voice
            if voice is not None and voice.attempt == event.attempt:
                first_us.setdefault(event.attempt, event.at)
    voice = screen.voice
    attempt = 0 if voice is None else voice.attempt
    cut = next((event for event in events if isinstance(event, Cutover)), None)
    return {
        "attempt": attempt,
        "outcome": screen.closed.outcome if screen.closed else None,
        "one_voice": shown == said.get(attempt, ""),
        "ttft_ms": (min(first_us.values()) - person.request.at) / 1e3 if first_us else None,
        "cut_ms": (cut.at - person.request.at) / 1e3 if cut else None,
        "trigger": cut.trigger if cut else None,
        "cloud_first_ms": (first_us[2] - person.request.at) / 1e3 if 2 in first_us else None,
        "cut_to_call_ms": (began[2] - cut.at) / 1e3 if cut and 2 in began else None,
        "call_to_first_ms": (first_us[2] - began[2]) / 1e3 if 2 in first_us and 2 in began else None,
    }


async def cases(lab: RouterLab) -> dict[str, Any]:
    """Write five requests for each case in ``CASES``, one after another. Return the figures by case."""
    path = Path(lab)
    await path.start(30)
    asked: dict[str, list[RequestEvents]] = {}
    for name, model in CASES.items():
        asked[name] = []
        for _ in range(5):
            asked[name].append(await path.ask(model, deadlines=Deadlines(ttft_ms=200, stall_ms=500, total_ms=10_000)))
            await asyncio.sleep(0.3)
    await path.settled()
    told = path.told()
    table = {}
    for name, people in asked.items():
        rows = [told[person.id] for person in people]
        table[name] = {
            "outcomes": dict(Counter(row["outcome"] for row in rows)),
            "trigger": rows[-1]["trigger"],
            "cut_ms": percentiles(row["cut_ms"] for row in rows if row["cut_ms"] is not None),
            "first_text_ms": percentiles(row["ttft_ms"] for row in rows if row["ttft_ms"] is not None),
            "cloud_first_ms": percentiles(row["cloud_first_ms"] for row in rows if row["cloud_first_ms"] is not None),
            "one_voice": all(row["one_voice"] for row in rows),
        }
    return table


async def deadline(lab: RouterLab, rounds: int) -> dict[str, Any]:
    """Measure the fallback from an engine that generates no token, with 1, 16 and 64 clients.

    First, each client starts at a random moment and sends ``rounds`` requests. It sends the next request when the
    previous one is closed. Then all clients send one request each, at the same moment.
    """
    path = Path(lab)
    await path.start(30)
    await path.ask("simulated-n20-mute")  # warm-up: each process does its work for the first time
    await path.settled()
    dice = random.Random(5)

    async def stream(people: list[RequestEvents]) -> None:
        await asyncio.sleep(dice.random())
        for _ in range(rounds):
            person = await path.ask("simulated-n20-mute")
            people.append(person)
            await path.closed[person.id].wait()

    found = {}
    for streams in (1, 16, 64):
        spread: list[RequestEvents] = []
        await asyncio.gather(*(stream(spread) for _ in range(streams)))
        burst = await asyncio.gather(*(path.ask("simulated-n20-mute") for _ in range(streams)))
        await path.settled()
        told = path.told()
        found[f"{streams} streams"] = {
            "requests": len(spread),
            "first_text_ms": percentiles(told[person.id]["ttft_ms"] for person in spread),
            "cut_ms": percentiles(told[person.id]["cut_ms"] for person in spread),
            "cut_to_call_ms": percentiles(told[person.id]["cut_to_call_ms"] for person in spread),
            "call_to_first_ms": percentiles(told[person.id]["call_to_first_ms"] for person in spread),
            "first_text_ms_all_at_once": percentiles(told[person.id]["ttft_ms"] for person in burst),
        }
    return found


async def race(lab: RouterLab, count: int, rate: float) -> dict[str, Any]:
    """Compare the fallback modes ``cancel`` and ``race``, which alternate from request to request.

    The first tokens of the engine and of the cloud have random delays, each with a Lomax distribution of scale 100 ms.

    Args:
        lab: The router and its log.
        count: Number of requests.
        rate: Requests per second.
    """
    path = Path(lab)
    await path.start(30, tail_ms=100)
    hows = {"cancel": [], "race": []}  # type: dict[str, list[Person]]
    begin = time.monotonic()
    number = 0
    while number < count:
        while number < count and number < (time.monotonic() - begin) * rate:
            how = ("cancel", "race")[number % 2]
            hows[how].append(await path.ask("simulated-n5-tail100", fallback=how))
            number += 1
        await asyncio.sleep(0.005)
    await path.settled()
    told = path.told()
    found: dict[str, Any] = {}
    accounts = {account.request_id: account for account in lab.written(Account)}
    for how, people in hows.items():
        rows = [told[person.id] for person in people]
        books = [accounts[person.id] for person in people]
        ttft = sorted(row["ttft_ms"] for row in rows if row["ttft_ms"] is not None)
        found[how] = {
            "requests": len(rows),
            "outcomes": dict(Counter(row["outcome"] for row in rows)),
            "one_voice": all(row["one_voice"] for row in rows),
            "ttft_ms": percentiles(ttft),
            "cloud_calls": sum(1 for book in books if len(book.attempts) > 1),
            "cloud_usd": round(sum(book.cost_usd for book in books), 6),
            "engine_tokens": sum(book.attempts[0].usage.completion_tokens for book in books),
        }
    found["p99_ratio"] = round(found["race"]["ttft_ms"]["p99"] / found["cancel"]["ttft_ms"]["p99"], 3)
    return found


def table(what: str, found: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown table with the figures ``found``.

    ``what`` names the measurement that returned the figures: ``cases``, ``deadline`` or ``race``.
    """
    match what:
        case "deadline":
            head = "| streams | requests | `Cutover` at ms | from it to the call | first token at ms | all at once |"
            rows = [
                f"| {streams} | {it['requests']} | {pair(it['cut_ms'])} | {pair(it['cut_to_call_ms'])}"
                f" | {pair(it['first_text_ms'])} | {pair(it['first_text_ms_all_at_once'])} |"
                for streams, it in found.items()
            ]
        case "race":
            head = "| | requests | first token ms, p50 / p99 | cloud calls | cloud US$ | engine tokens | one voice |"
            rows = [
                f"| {how} | {it['requests']} | {pair(it['ttft_ms'])} | {it['cloud_calls']} | {it['cloud_usd']}"
                f" | {it['engine_tokens']} | {'yes' if it['one_voice'] else 'NO'} |"
                for how, it in found.items()
                if how != "p99_ratio"
            ]
            rows.append(f"\np99 of `race` over p99 of `cancel`: {found['p99_ratio']}")
        case _:
            head = "| engine | outcomes | trigger | `Cutover` at ms | first text at ms | one voice |"
            rows = [
                f"| {case} | {it['outcomes']} | {it['trigger'] or '-'} | {pair(it['cut_ms'])}"
                f" | {pair(it['first_text_ms'])} | {'yes' if it['one_voice'] else 'NO'} |"
                for case, it in found.items()
            ]
    return [head, "|" + "---|" * (head.count("|") - 1), *rows]


def pair(values: dict[str, float]) -> str:
    """Return p50 and p99 as a table cell, or ``-`` if there are no values."""
    return f"{values['p50']} / {values['p99']}" if values else "-"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="deadline", choices=["cases", "deadline", "race"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=60.0, help="with race: requests per second (default: 60)")
    parser.add_argument("--json", action="store_true", help="also print all figures, as JSON")
    given = parser.parse_args()
    async with RouterLab.opened() as lab:
        match given.what:
            case "cases":
                result = await cases(lab)
            case "deadline":
                result = await deadline(lab, given.rounds)
            case _:
                result = await race(lab, given.count, given.rate)
        assert all(closed.outcome != "rejected" for closed in lab.written(Closed))
    if given.json:
        print(json.dumps({"what": given.what} | result))
    print("\n".join(table(given.what, result)))


if __name__ == "__main__":
    uvloop.run(main())
