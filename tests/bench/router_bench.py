"""Measure the router's process with a real broker: how precise its deadlines are, and what kills and rebalances do.

    python -m tests.bench.router_bench deadlines   5,000 open requests: how late each ``Cutover`` is written and read
    python -m tests.bench.router_bench kills       the router is killed 20 times under load; every request closes once
    python -m tests.bench.router_bench rebalance   a second router joins or leaves every 2 s for a minute
    python -m tests.bench.router_bench egress      10,000 requests, most of whose prompts must not go to the cloud
    python -m tests.bench.router_bench losers      first chunks of attempt 1 up to 20 ms before or after the deadline
    python -m tests.bench.router_bench breaker     the self-hosted workers send no text for ten seconds
    python -m tests.bench.router_bench budget      every attempt 1 fails, and a tenth of the requests may use the cloud

Each measurement starts its own embedded broker, takes less than two minutes, and prints its row of RESULTS.md. With
``--json``, it also prints everything that it measured.
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

from schemas.requests import Deadlines, Request
from schemas.side_events import Account, Cancel
from schemas.stream import Chunk, Closed, Cutover, Verdict
from schemas.topics import REQUESTS_VERTEX, STREAMS
from services.bus import Received, UnreadableRecord
from services.runtime.clock import now_us
from services.stream import Restart, Screen, apply
from tests.bench.router_report import percentiles, told
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents

CLOUD = {
    "RAILBUS_FALLBACK": "vertex",
    "RAILBUS_RETRIES": "0",
    "RAILBUS_FALLBACK_RATIO": "1",
    "RAILBUS_FALLBACK_FREE": "1000000",
    "RAILBUS_TOTAL_MAX_MS": "60000",
}


async def deadlines(lab: RouterLab, count: int) -> dict[str, Any]:
    """Measure the time from the first-token deadline until a ``Cutover`` is written, and until it is read.

    The router writes the ``Cutover``, and another process reads it. ``count`` requests are open at the same time. Their
    deadlines are spread over 20 seconds.
    """
    router = await lab.run(**CLOUD, RAILBUS_BREAKER_TRIP="0")
    people: dict[str, RequestEvents] = {}
    late_ms: dict[str, float] = {}
    dice = random.Random(1)

    def watch(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, Cutover):
                asked = people[record.event.request_id].request
                late_ms[asked.request_id] = (now_us() - asked.at) / 1e3 - asked.deadlines.ttft_ms

    lab.watch = watch
    begin = time.monotonic()
    for _ in range(count):
        spread_ms = 8_000 - int((time.monotonic() - begin) * 1e3) + dice.randrange(20_000)
        person = RequestEvents(deadlines=Deadlines(ttft_ms=max(spread_ms, 1), total_ms=60_000))
        people[person.id] = person
        await lab.post(person.request, person.started())
    produced_s = time.monotonic() - begin
    cpu_s = router.cpu_s()
    await lab.until(lambda: len(late_ms) == count, 60)
    cpu_s = router.cpu_s() - cpu_s
    written_ms = [
        (event.at - people[event.request_id].request.at) / 1e3 - people[event.request_id].request.deadlines.ttft_ms
        for event in lab.written(Cutover)
    ]
    return {
        "open": count,
        "produced_s": round(produced_s, 1),
        "router_cpu_s": round(cpu_s, 2),
        "decided_late_ms": percentiles(written_ms),
        "read_late_ms": percentiles(late_ms.values()),
    }


def endings(lab: RouterLab, people: dict[str, RequestEvents]) -> dict[str, Any]:
    """Return figures from the log about how the requests were closed. ``people`` has the requests by id."""
    effective: dict[str, Closed] = {}
    for closed in lab.written(Closed):
        effective.setdefault(closed.request_id, closed)
    accounts = Counter(account.request_id for account in lab.written(Account))
    calls = Counter(
        (record.event.request_id, record.event.attempt)
        for record in lab.log
        if record.topic == REQUESTS_VERTEX.name and isinstance(record.event, Request)
    )
    late_ms = [
        (closed.at - people[rid].request.at) / 1e3 - people[rid].request.deadlines.total_ms
        for rid, closed in effective.items()
    ]
    return {
        "requests": len(people),
        "closed": len(effective),
        "outcomes": dict(Counter(closed.outcome for closed in effective.values())),
        "closed_written": len(lab.written(Closed)),
        "accounts": len(accounts),
        "accounts_written": accounts.total(),
        "cloud_calls": len(calls),
        "cloud_calls_written": calls.total(),
        "past_total_deadline_ms": percentiles(late_ms),
    }


async def _load(lab: RouterLab, people: dict[str, RequestEvents], seconds: float, rate: float, total_ms: int) -> None:
    """Write requests whose worker starts an answer and then sends nothing more.

    For half of the requests, a cloud worker answers later. The other half gets no answer.

    Args:
        lab: The broker and the routers under test.
        people: Dictionary to which each request is added under its id.
        seconds: How long to write requests.
        rate: Requests per second.
        total_ms: Deadline for closing a request, in milliseconds after its receipt.
    """
    dice = random.Random(2)
    begin = time.monotonic()
    number = 0
    async with asyncio.TaskGroup() as tasks:
        while (elapsed := time.monotonic() - begin) < seconds:
            while number < elapsed * rate:
                number += 1
                person = RequestEvents(deadlines=Deadlines(total_ms=total_ms))
                people[person.id] = person
                tasks.create_task(lab.post(person.request, person.started()))
                if dice.random() < 0.5:
                    tasks.create_task(_answer_later(lab, person))
            await asyncio.sleep(0.01)


async def _answer_later(lab: RouterLab, person: RequestEvents) -> None:
    await asyncio.sleep(0.6)
    await lab.post(person.started(2), person.chunk(0, 2), person.finished(0, 2))


async def _all_accounted(lab: RouterLab, people: dict[str, RequestEvents]) -> None:
    await lab.until(lambda: len({account.request_id for account in lab.written(Account)}) == len(people), 60)


async def kills(lab: RouterLab, count: int, rate: float) -> dict[str, Any]:
    """Kill the router ``count`` times under load, and start it again each time. Return how the requests were closed."""
    env = CLOUD | {"RAILBUS_ROUTER_INSTANCE": "only", "RAILBUS_TOTAL_MAX_MS": "20000"}
    people: dict[str, RequestEvents] = {}
    router = await lab.run(**env)
    loading = asyncio.create_task(_load(lab, people, count * 2.0, rate, 2_500))
    back_s = []
    for _ in range(count):
        await asyncio.sleep(1 + random.random())
        router.kill()
        begin = time.monotonic()
        router = await lab.run(**env)
        back_s.append(time.monotonic() - begin)
    await loading
    await _all_accounted(lab, people)
    return {"kills": count, "killed_to_deciding_ms": percentiles(s * 1e3 for s in back_s)} | endings(lab, people)


async def rebalance(lab: RouterLab, seconds: float, rate: float) -> dict[str, Any]:
    """Run one router all the time under load. Start a second one for two seconds, stop it for two seconds, and so on.

    Return how often the second router joined or left, and how the requests were closed.
    """
    env = CLOUD | {"RAILBUS_TOTAL_MAX_MS": "20000"}
    people: dict[str, RequestEvents] = {}
    await lab.run(**env)
    loading = asyncio.create_task(_load(lab, people, seconds, rate, 5_000))
    moves = 0
    while not loading.done():
        other = await lab.run(**env)
        await asyncio.sleep(2)
        await other.stop()
        await asyncio.sleep(2)
        moves += 2
    await loading
    await _all_accounted(lab, people)
    effective = {(event.request_id, event.attempt) for event in lab.written(Cutover)}
    return {"moves": moves, "cutovers_written": len(lab.written(Cutover)), "cutovers": len(effective)} | endings(
        lab, people
    )


async def egress(lab: RouterLab, count: int) -> dict[str, Any]:
    """Let attempt 1 of every request fail, and count the prompts that the router then sends to the cloud.

    About a tenth of the prompts may leave the premises. The others must stay: the request or the policy forbids egress,
    the prompt is denied, or there is no verdict.
    """
    await lab.run(**CLOUD, RAILBUS_INPUT_GATE="hold")
    people: dict[str, RequestEvents] = {}
    may_leave: set[str] = set()
    dice = random.Random(3)
    for number in range(count):
        fate = dice.choice(["free", "marked", "marked", "denied", "denied", "kept", "kept", "kept", "silent", "silent"])
        person = RequestEvents(
            egress="forbidden" if fate == "marked" else "allowed", deadlines=Deadlines(total_ms=3_000, verdict_ms=2_000)
        )
        people[person.id] = person
        words: list[Any] = []
        if fate != "silent":
            words.append(
                Verdict(
                    **person.about(),
                    decision="deny" if fate == "denied" else "allow",
                    policy_version="p",
                    egress="forbidden" if fate == "kept" else "allowed",
                )
            )
        if fate == "free":
            may_leave.add(person.id)
        events = [person.started(input_gate="hold"), person.failed(), *words]
        dice.shuffle(events)
        await lab.post(person.request, *events)
        if number % 50 == 0:
            await asyncio.sleep(0.05)
    await lab.until(lambda: len({closed.request_id for closed in lab.written(Closed)}) == count, 120)
    sent = [r.event.request_id for r in lab.log if r.topic == REQUESTS_VERTEX.name and isinstance(r.event, Request)]
    return {
        "requests": count,
        "may_leave": len(may_leave),
        "sent": len(set(sent)),
        "sent_that_must_stay": len(set(sent) - may_leave),
    }


async def losers(lab: RouterLab, times: int) -> dict[str, Any]:
    """Run requests whose attempt 1 sends its first chunk within 20 ms before or after the first-token deadline.

    Attempt 2, in the cloud, answers 30 ms after the router has started it. For each offset from the deadline, in whole
    milliseconds, and each mode of fallback (``cancel`` and ``race``), there are ``times`` requests. Return what readers
    saw and how the requests were closed.
    """
    await lab.run(**CLOUD, RAILBUS_BREAKER_TRIP="0")
    people: dict[str, RequestEvents] = {}
    dice = random.Random(4)
    plans = [(offset, how) for offset in range(-20, 21) for how in ("cancel", "race")] * times
    dice.shuffle(plans)

    async def live(person: RequestEvents, offset_ms: int) -> None:
        await lab.post(person.request, person.started())
        await asyncio.sleep((200 + offset_ms) / 1e3 - (now_us() - person.request.at) / 1e6)
        await lab.post(person.chunk(0))
        await asyncio.sleep(0.1)
        await lab.post(person.finished(0))

    def cloud(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and record.topic == REQUESTS_VERTEX.name:
                tasks.create_task(_answer(lab, people[record.event.request_id]))  # type: ignore[union-attr]

    lab.watch = cloud
    async with asyncio.TaskGroup() as tasks:
        for offset, how in plans:
            person = RequestEvents(fallback=how)
            people[person.id] = person
            tasks.create_task(live(person, offset))
            await asyncio.sleep(0.015)
        await _all_accounted(lab, people)
    return judged(lab, people) | endings(lab, people)


async def _answer(lab: RouterLab, person: RequestEvents) -> None:
    await asyncio.sleep(0.03)
    await lab.post(person.started(2), person.chunk(0, 2), person.finished(0, 2))


async def breaker(lab: RouterLab, rate: float) -> dict[str, Any]:
    """Let the self-hosted workers answer for 5 s, send no text for 10 s, and answer again for 8 s.

    ``rate`` requests arrive each second, at even intervals. Return how long the circuit breaker took to open and to
    close again, and how the requests were closed.
    """
    await lab.run(**CLOUD)
    people: dict[str, RequestEvents] = {}
    begin = time.monotonic()
    asked_s: dict[str, float] = {}

    async def live(person: RequestEvents, healthy: bool) -> None:
        await lab.post(person.request, person.started())
        if healthy:
            await asyncio.sleep(0.05)
            await lab.post(person.chunk(0), person.finished(0))

    def cloud(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and record.topic == REQUESTS_VERTEX.name:
                tasks.create_task(_answer(lab, people[record.event.request_id]))  # type: ignore[union-attr]

    lab.watch = cloud
    async with asyncio.TaskGroup() as tasks:
        while (elapsed := time.monotonic() - begin) < 23:
            person = RequestEvents()
            people[person.id], asked_s[person.id] = person, elapsed
            tasks.create_task(live(person, not 5 <= elapsed < 15))
            await asyncio.sleep(1 / rate)
        await _all_accounted(lab, people)
    cut_ms = {
        event.request_id: (event.at - people[event.request_id].request.at) / 1e3 for event in lab.written(Cutover)
    }
    straight_s = sorted(asked_s[rid] for rid, ms in cut_ms.items() if ms < 100)
    first_ms: dict[str, float] = {}
    for event in lab.written(Chunk):
        first_ms.setdefault(event.request_id, (event.at - people[event.request_id].request.at) / 1e3)
    sick = [rid for rid, s in asked_s.items() if straight_s[0] <= s < 15]
    return {
        "open_after_sick_s": round(straight_s[0] - 5, 2),
        "closed_after_healthy_s": round(straight_s[-1] - 15, 2),
        "late_ones_while_sick": sum(1 for rid in sick if cut_ms.get(rid, 0) >= 100),
        "sent_straight": len(straight_s),
        "ttft_ms_while_open": percentiles(first_ms[rid] for rid in sick if cut_ms.get(rid, 1_000) < 100),
    } | endings(lab, people)


async def budget(lab: RouterLab, seconds: float, rate: float) -> dict[str, Any]:
    """Let attempt 1 of every request fail, while at most a tenth of the requests may fall back to the cloud.

    Return how many requests went to the cloud and how the requests were closed.
    """
    await lab.run(**CLOUD | {"RAILBUS_FALLBACK_RATIO": "0.1", "RAILBUS_FALLBACK_FREE": "0"})
    people: dict[str, RequestEvents] = {}

    def cloud(records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received) and record.topic == REQUESTS_VERTEX.name:
                tasks.create_task(_answer(lab, people[record.event.request_id]))  # type: ignore[union-attr]

    lab.watch = cloud
    begin = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        while time.monotonic() - begin < seconds:
            person = RequestEvents()
            people[person.id] = person
            tasks.create_task(lab.post(person.request, person.started(), person.failed()))
            await asyncio.sleep(1 / rate)
        await _all_accounted(lab, people)
    result = endings(lab, people)
    reasons = Counter(closed.reason for closed in lab.written(Closed) if closed.outcome == "failed")
    return result | {"cloud_share": round(result["cloud_calls"] / len(people), 4), "reasons": dict(reasons)}


def judged(lab: RouterLab, people: dict[str, RequestEvents]) -> dict[str, Any]:
    """Fold each request's log. Return counts of retractions, cutovers and correct answers.

    Also return how long the router took to cancel attempts that lost to another attempt: percentiles, in milliseconds.
    """
    logs: dict[str, list[Received]] = {rid: [] for rid in people}
    for record in lab.log:
        if record.topic == STREAMS.name:
            logs[record.event.request_id].append(record)  # type: ignore[union-attr]
    found: Counter[str] = Counter()
    stopped_ms = []
    cancels = {(e.request_id, e.attempt): e.at for e in lab.written(Cancel)}
    for rid, records in logs.items():
        screen, shown = Screen(rid), ""
        lost_at: dict[int, int] = {}
        for record in records:
            event = record.event
            before = screen.candidates
            for op in screen.feed(event):  # type: ignore[arg-type]
                found["retractions"] += isinstance(op, Restart) and shown != ""
                shown = apply(shown, op)
            for attempt in before - screen.candidates:
                lost_at.setdefault(attempt, event.at)  # type: ignore[union-attr]
        cut = [record for record in records if isinstance(record.event, Cutover)]
        found["cutovers_void"] += len(cut) - (screen.attempts - 1)
        found["cutovers_effective"] += screen.attempts - 1
        found["one_voice"] += shown == "abc"
        for attempt, at_us in lost_at.items():
            if (rid, attempt) in cancels:
                stopped_ms.append((cancels[rid, attempt] - at_us) / 1e3)
            else:
                found["losers_that_had_ended"] += 1
    return {
        "how": dict(found),
        "loser_cancelled_after_ms": percentiles(stopped_ms),
        "losers_cancelled": len(stopped_ms),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["deadlines", "kills", "rebalance", "egress", "losers", "breaker", "budget"])
    parser.add_argument(
        "--count", type=int, help="number of requests (deadlines, egress), of kills (kills), or of repetitions (losers)"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second (default: 40)")
    parser.add_argument("--json", action="store_true", help="also print all figures, as JSON")
    given = parser.parse_args()
    async with RouterLab.opened() as lab:
        match given.what:
            case "deadlines":
                result = await deadlines(lab, given.count or 5_000)
            case "kills":
                result = await kills(lab, given.count or 20, given.rate)
            case "rebalance":
                result = await rebalance(lab, given.seconds, given.rate)
            case "losers":
                result = await losers(lab, given.count or 50)
            case "breaker":
                result = await breaker(lab, given.rate)
            case "budget":
                result = await budget(lab, min(given.seconds, 30), given.rate)
            case _:
                result = await egress(lab, given.count or 10_000)
    if given.json:
        print(json.dumps({"what": given.what} | result))
    bar, figures, met = told(given.what, result)
    print(f"| {bar} | {figures} | {'met' if met else '**missed**'} |")


if __name__ == "__main__":
    uvloop.run(main())
