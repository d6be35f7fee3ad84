"""Measure how many chunks per second one CPU core checks, with tier 0 (patterns) and tier 1 (NeMo rails) together.

    python -m tests.bench.safety_throughput [--streams 500] [--chars 4] [--chunks 200] [--policy default]

There are many streams at once. As in the service, ``SafetyCore`` and the real NeMo rails run in one process. Reading
from the broker and writing to it are left out (``tests.bench.bus_hop`` measures them). The measured time is the CPU
time of the process.

A loop of plain additions is timed before and after. On a busy machine with shared CPU cores, additions and checks
become slower alike, so that the ratio of their speeds stays the same.
"""

import argparse
import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from services.bus import Received
from services.policy import Policy, Scanner, load
from services.processor import Effect
from services.safety.checks.executor import CheckExecutor
from services.safety.checks.nemo import nemo_check
from services.safety.core import SafetyCore
from services.safety.decide.check_types import CheckRequest, CheckResult
from tests.unit.safety.world import RunWriter

ROOT = Path(__file__).resolve().parents[2]
BATCH = 500
TENANTS = 20

TEXT = (
    "The quick brown fox jumps over the lazy dog and then explains, in some detail, how to make a very good soup with "
    "3 onions and 250 grams of lentils. Boil the water first; add salt, pepper and a bay leaf (or two). Write to "
    "anna.berg@example.org if it does not work, or look at the notes of 2026-11-21, section 4.2. "
)


def events(streams: int, chunks: int, chars: int) -> list[Any]:
    """Return the events of several answers, interleaved event by event.

    Args:
        streams: Number of answers. Their texts begin at different places of ``TEXT``.
        chunks: Number of chunks of each answer.
        chars: Number of characters of each chunk.
    """
    text = TEXT * (chunks * chars // len(TEXT) + 3)
    lines = []
    for number in range(streams):
        begin = number * 7 % len(TEXT)
        cut = [text[begin + index * chars :][:chars] for index in range(chunks)]
        lines.append(RunWriter(number, tenant=f"t{number % TENANTS}").whole(cut))
    return [event for row in zip(*lines, strict=True) for event in row]


async def both_tiers(policy: Policy, log: list[Any]) -> tuple[float, Counter[str]]:
    """Run the whole log through tier 0 and tier 1, with the real NeMo rails.

    Return the CPU time in seconds, and how many effects of each type ``SafetyCore`` returned.
    """
    check = await nemo_check(policy)
    core = SafetyCore(policy, "safety/bench")
    core.gained(0)
    core.caught_up(0, 1, 1)
    counts: Counter[str] = Counter()

    def do(effects: Sequence[Effect]) -> None:
        for effect in effects:
            counts[type(effect).__name__] += 1
            if isinstance(effect, CheckRequest):
                checker.put(effect)

    checker = CheckExecutor(lambda _: {1: check}, lambda look, answer: do(core.take_outcome(look, answer, 1)))
    begun = time.process_time()
    for index in range(0, len(log), BATCH):
        for event in log[index : index + BATCH]:
            core.read(Received("", 0, 0, 0, event, None), 1, 1)
        while core.busy:
            do(core.step(1))
            await asyncio.sleep(0)
    while core.pending_checks:  # noqa: ASYNC110 - answers come by tasks of this loop; it only lets them run
        await asyncio.sleep(0)
    spent = time.process_time() - begun
    await check.close()
    return spent, counts


def tier_0(policy: Policy, log: list[Any]) -> float:
    """Return the CPU time in seconds that the pattern matcher alone needs for the log."""
    scanners: dict[str, Scanner] = {}
    begun = time.process_time()
    for event in log:
        if hasattr(event, "text"):
            scanner = scanners.get(event.request_id)
            if scanner is None:
                scanner = scanners[event.request_id] = Scanner(policy.automaton)
            scanner.feed(event.text)
    return time.process_time() - begun


def without_rails(policy: Policy, log: list[Any]) -> float:
    """Return the CPU seconds that ``SafetyCore`` needs for the log. NeMo does not run; each check finds nothing."""
    core = SafetyCore(policy, "safety/bench")
    core.gained(0)
    core.caught_up(0, 1, 1)
    begun = time.process_time()
    for index in range(0, len(log), BATCH):
        for event in log[index : index + BATCH]:
            core.read(Received("", 0, 0, 0, event, None), 1, 1)
        while core.busy:
            for effect in core.step(1):
                if isinstance(effect, CheckRequest):
                    core.take_outcome(effect, CheckResult(()), 1)
    return time.process_time() - begun


def additions() -> float:
    """Return how many million additions per second this interpreter does on this CPU core at the moment."""
    begun, total = time.process_time(), 0
    for number in range(2_000_000):
        total += number
    return 2 / (time.process_time() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument(
        "--chars", type=int, default=4, help="characters per chunk; 4 are about one token (default: %(default)s)"
    )
    parser.add_argument("--policy", default="default")
    args = parser.parse_args()
    policy = load(ROOT / "policies" / args.policy)
    log = events(args.streams, args.chunks, args.chars)
    count = args.streams * args.chunks
    gc.collect()
    gc.freeze()  # a service does not hold the whole log: the collector must not walk ours
    before = additions()
    spent, counts = uvloop.run(both_tiers(policy, log))
    result = {
        "streams": args.streams,
        "chars_a_chunk": args.chars,
        "chunks": count,
        "tier0_and_tier1_chunks_per_s": round(count / spent),
        "core_without_rails_chunks_per_s": round(count / without_rails(policy, log)),
        "matcher_alone_chunks_per_s": round(count / tier_0(policy, log)),
        "looks": counts["CheckRequest"],
        "events_written": counts["Write"],
        "million_additions_per_s": [round(before, 1), round(additions(), 1)],
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
