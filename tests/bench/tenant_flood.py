"""Measure how much a flood of prompts from one tenant delays the verdicts of another tenant.

    python -m tests.bench.tenant_flood [--kinds dear,long] [--seconds 15] [--rounds 2] [--classifiers 2]

The real rails process runs on the embedded broker, with the default policy and its deadlines. A quiet tenant asks ten
new questions per second. Another tenant floods from another process, in every second phase: quiet, flood, quiet, flood.

The benchmark measures the time from a request of the quiet tenant to its verdict, by the timestamps in the two events.
For each kind of flood, it prints percentiles of this time in milliseconds, with and without the flood, and the ratio of
the two 99th percentiles. This ratio should be at most 1.5. The benchmark also prints the number of verdicts for the
quiet tenant in which a rail gave no answer.
"""

import argparse
import asyncio
import multiprocessing
import random
import time
from collections.abc import Callable

from schemas.stream import Verdict
from services.bus import BusSettings, Producer
from tests.bench.safety_throughput import additions
from tests.integration.rails.lab import RailsLab, make_request
from tests.support.bus import any_role, topic_of

QUIET_EVERY_S = 0.1
TENANT_QUIET, TENANT_FLOOD = "quiet", "flood"
QUESTION = (
    "Our support desk writes about {} tickets a day, and number {} was about the printer. Summarise in three sentences "
    "what an append-only log is good for."
)
WORDS = [
    "support", "desk", "ticket", "answer", "stream", "append", "log", "reason", "team", "week", "printer", "summary",
    "order", "customer", "invoice", "page", "queue", "partition", "offset", "reader", "model", "token", "train",
]  # fmt: skip


def prose(random_: random.Random, chars: int) -> str:
    text = ""
    while len(text) < chars:
        text += " ".join(random_.choices(WORDS, k=12)) + ". "
    return text[:chars]


def digits(random_: random.Random) -> str:
    return "".join(f"0{random_.randrange(10**9, 10**10)} " for _ in range(660))


FLOODS: dict[str, tuple[float, Callable[[random.Random], str]]] = {
    "many": (100, lambda r: prose(r, 160)),
    "dear": (20, lambda r: f"{r.random()} " + ("sk-" * 2_700)[:8_000]),
    "digits": (10, digits),
    "found": (10, lambda r: "".join(f"a{r.randrange(10**6)}@example.org " for _ in range(380))),
    "long": (10, lambda r: prose(r, 30_000)),
    "longest": (2, lambda r: prose(r, 99_000)),
}
"""For each kind of flood, its requests per second and the function that makes a prompt."""


async def flood(address: str, partitions: int, kind: str, seconds: float) -> None:
    producer = Producer(BusSettings(bootstrap=address, partitions=partitions), role=any_role(), name="flood")
    await producer.start()
    rate, text = FLOODS[kind]
    random_, begun, number = random.Random(time.time_ns()), time.perf_counter(), 0
    texts = [text(random_) for _ in range(max(int(rate), 8))]
    while time.perf_counter() - begun < seconds:
        number += 1
        request = make_request(random_.randrange(10**9), f"{number} {texts[number % len(texts)]}", tenant=TENANT_FLOOD)
        await producer.post(topic_of(request), request)
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
    await producer.stop()


def run_flood(*given: object) -> None:
    asyncio.run(flood(*given))  # type: ignore[arg-type]


async def ask(lab: RailsLab, seconds: float, random_: random.Random) -> list[tuple[float, Verdict]]:
    """Ask questions as the quiet tenant. Return each verdict with its time since the request, in milliseconds."""
    begun, asked = time.perf_counter(), []
    while time.perf_counter() - begun < seconds:
        text = QUESTION.format(random_.randrange(10**6), random_.randrange(10**6))
        request = make_request(random_.randrange(10**9), text, tenant=TENANT_QUIET)
        asked.append(request)
        await lab.post(request)
        await asyncio.sleep(max(0.0, begun + len(asked) * QUIET_EVERY_S - time.perf_counter()))
    ids = {request.request_id for request in asked}
    await lab.until(lambda: ids <= {event.request_id for event in lab.written(Verdict)})
    verdicts = {event.request_id: event for event in lab.written(Verdict)}
    answers = [verdicts[request.request_id] for request in asked]
    return [((verdict.at - request.at) / 1_000, verdict) for request, verdict in zip(asked, answers, strict=True)]


def in_parts(answers: list[tuple[float, Verdict]]) -> str:
    """Return a text with medians in milliseconds: the time of each rail, and the time outside the rails service.

    The time outside is the rest of the time from a request to its verdict, such as the time on Kafka. Each item of
    ``answers`` is a pair: the milliseconds from a request to its verdict, and the verdict.
    """
    parts: dict[str, list[float]] = {"outside": [ms - verdict.total_ms for ms, verdict in answers]}
    for _, verdict in answers:
        for rail in verdict.rails:
            parts.setdefault(rail.rail, []).append(rail.ms)
    return ", ".join(f"{name} {percentile(values, 0.5):.1f}" for name, values in parts.items())


def no_answer(verdict: Verdict) -> bool:
    return any(rail.result in {"broke", "timeout"} or rail.rail == "queue" for rail in verdict.rails)


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


async def measure(kind: str, seconds: float, rounds: int, classifiers: int) -> None:
    random_ = random.Random(time.time_ns())
    phases: dict[bool, list[tuple[float, Verdict]]] = {False: [], True: []}
    async with RailsLab.opened() as lab:
        service = lab.start(RAILBUS_RAILS_CLASSIFIERS=str(classifiers))
        await service.ready()
        await ask(lab, 2, random_)  # warm-up
        for flooded in (False, True) * rounds:
            process = None
            if flooded:
                given = (lab.bus.bootstrap, lab.partitions, kind, seconds + 3)
                process = multiprocessing.get_context("spawn").Process(target=run_flood, args=given)
                process.start()
                await lab.until(lambda: any(r.event.tenant == TENANT_FLOOD for r in lab.log))
                await asyncio.sleep(1.5)
            phases[flooded] += await ask(lab, seconds, random_)
            if process is not None:
                await asyncio.to_thread(process.join)
            read = -1
            while read < len(lab.log):  # until all waiting requests have their verdicts
                read = len(lab.log)
                await asyncio.sleep(3)
            flooding = [v for v in lab.written(Verdict) if v.tenant == TENANT_FLOOD]
            lab.log.clear()
            if flooding:
                reports = [rail for verdict in flooding for rail in verdict.rails]
                slow = sorted({(r.rail, r.result) for r in reports if r.result not in {"passed", "masked"}})
                print(f"    {kind}: {len(flooding)} verdicts of the flood, {slow}", flush=True)
        await service.stop()
    cells = []
    for flooded in (False, True):
        ms = [each for each, _ in phases[flooded]]
        late = sum(no_answer(verdict) for _, verdict in phases[flooded])
        print(f"    {'flooded' if flooded else 'alone'}: {in_parts(phases[flooded])}")
        cells.append(
            f"{percentile(ms, 0.5):.1f} / {percentile(ms, 0.95):.1f} / {percentile(ms, 0.99):.1f} / {max(ms):.1f}, "
            f"{late} of {len(ms)}"
        )
    ratio = percentile([ms for ms, _ in phases[True]], 0.99) / percentile([ms for ms, _ in phases[False]], 0.99)
    print(f"| {kind}, {FLOODS[kind][0]:.0f}/s | {cells[0]} | {cells[1]} | {ratio:.2f} |", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(FLOODS))
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--classifiers", type=int, default=2)
    given = parser.parse_args()
    print(f"{additions():.1f} million additions a second\n")
    print("| flood | alone: p50 / p95 / p99 / max ms, a rail late | flooded | p99 flooded / alone |\n|---|---|---|---|")
    for kind in given.kinds.split(","):
        await measure(kind, given.seconds, given.rounds, given.classifiers)


if __name__ == "__main__":
    asyncio.run(main())
