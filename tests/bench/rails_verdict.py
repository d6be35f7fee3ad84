"""Measure how long a verdict takes, with the real rails process on the embedded broker.

    python -m tests.bench.rails_verdict [REQUESTS]

The output has p50 and p99, in milliseconds, of three times: the duration of each rail, the time until all rails have
decided, and the time from the receipt of a request to its verdict on the log. The loads are one request after
another, long prompts, many prompts at once, one prompt many times at once, and one prompt whose results are kept in
Redis.

The deadlines of the rails are raised, so that a slow rail shows its real duration instead of a timeout. The last column
is the number of verdicts that took longer than the classifier's deadline in the default policy.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from services.policy import load
from tests.integration.rails.lab import RailsLab, RedisServer, copy_patient_policy, make_request
from tests.support.policies import ROOT

TEXT = (
    "Our support desk writes about {} tickets a day. Summarise in three sentences what an append-only log is good for "
    "when answers are streamed, and say which of the reasons matters most to a team of that size."
)
LONG = (" ".join(f"In week {week} the team closed every ticket about the printers." for week in range(100)))[:6_000]
DEADLINE_MS = next(
    rail.deadline_ms for rail in load(ROOT / "policies/default").document.rails.rail if rail.name == "jailbreak"
)


async def one_by_one(lab, first, count, text):
    return [(request := make_request(first + n, text(n)), await lab.verdict(request)) for n in range(-3, count)][3:]


async def at_once(lab, first, count, text):
    requests = [make_request(first + n, text(n)) for n in range(count)]
    await lab.ask(*requests)
    await lab.until(lambda: all(lab.verdicts(request) for request in requests))
    return [(request, lab.verdicts(request)[0]) for request in requests]


def show(name, pairs):
    assert all(verdict.decision == "allow" for _, verdict in pairs)
    rails = {rail.rail: [] for rail in pairs[0][1].rails}
    for _, verdict in pairs:
        for rail in verdict.rails:
            rails[rail.rail].append(rail.ms)
    own = [verdict.total_ms for _, verdict in pairs]
    whole = [(verdict.at - request.at) / 1_000 for request, verdict in pairs]
    cells = [percentiles(rails.get(rail, [])) for rail in ("admission", "secrets", "pii", "jailbreak")]
    late = sum(ms > DEADLINE_MS for ms in own)
    print(
        f"| {name} | {' | '.join((*cells, percentiles(own), percentiles(whole)))} | {late} of {len(own)} |", flush=True
    )


def percentiles(values):
    if not values:
        return "-"
    ranked = sorted(values)
    return f"{ranked[len(ranked) // 2]:.1f} / {ranked[int(len(ranked) * 0.99)]:.1f}"


async def main(count):
    print(
        f"| p50 / p99 ms | admission | secrets | pii | jailbreak | all | receipt to verdict | over {DEADLINE_MS} ms |"
    )
    print("|---|---|---|---|---|---|---|---|")
    redis = RedisServer()
    try:
        async with RailsLab.opened() as lab:
            with tempfile.TemporaryDirectory() as folder:
                policy = str(copy_patient_policy(Path(folder), jailbreak=True))
                service = lab.start(RAILBUS_POLICY=policy)
                await service.ready()
                show("one by one", await one_by_one(lab, 10_000, count, TEXT.format))
                long = await one_by_one(lab, 20_000, count // 6, lambda n: f"{n} " + LONG)
                show("6,000 characters", long)
                show("16 at once", await at_once(lab, 30_000, 16, lambda n: TEXT.format(n + 1_000)))
                show("64 at once", await at_once(lab, 40_000, 64, lambda n: TEXT.format(n + 2_000)))
                show("64 at once, same words", await at_once(lab, 50_000, 64, lambda _: TEXT.format("many")))
                service.stop()
                service = lab.start(RAILBUS_POLICY=policy, RAILBUS_REDIS_URL=redis.url)
                await service.ready()
                show("remembered in Redis", await one_by_one(lab, 60_000, count, lambda _: TEXT.format(0)))
                service.stop()
    finally:
        redis.kill()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60))
