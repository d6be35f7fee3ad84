"""How long a verdict takes: the real rails process on the embedded broker, requests one after another.

    python -m tests.bench.rails_verdict [REQUESTS]

Prints percentiles of the rails' own time (taken up to decided) and of receipt to verdict on the log, in milliseconds:
with the default policy, without its classifier, and with remembered answers. The deadline is raised, so that slow
verdicts are seen as slow and not as timed out; how many are over 150 ms is printed beside it.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.integration.rails.harness import RedisServer, asked, opened, unhurried

TEXT = (
    "Our support desk writes about {} tickets a day. Summarise in three sentences what an append-only log is good for "
    "when answers are streamed, and say which of the reasons matters most to a team of that size."
)


async def measure(lab, name, number, count, same):
    own, whole = [], []
    for turn in range(-3, count):
        request = asked(number + turn, TEXT.format(0 if same else number + turn))
        verdict = await lab.verdict(request)
        assert verdict.decision == "allow", verdict
        if turn >= 0:
            own.append(verdict.total_ms)
            whole.append((verdict.at - request.at) / 1_000)
    late = sum(ms > 150 for ms in own)
    print(f"{name:24} {percentiles(own):>22} {percentiles(whole):>22} {late:>9}/{count}", flush=True)


def percentiles(values):
    ranked = sorted(values)
    return f"{ranked[len(ranked) // 2]:.1f} / {ranked[int(len(ranked) * 0.99)]:.1f}"


async def main(count):
    print(f"{'p50 / p99, ms':24} {'rails':>22} {'receipt to verdict':>22} {'over 150 ms':>11}")
    redis = RedisServer()
    try:
        async with opened() as lab:
            for number, (name, jailbreak, url) in enumerate(
                [("patterns", False, None), ("patterns + classifier", True, None), ("remembered", True, redis.url)]
            ):
                with tempfile.TemporaryDirectory() as folder:
                    env = {"RAILBUS_POLICY": str(unhurried(Path(folder), jailbreak=jailbreak))}
                    service = lab.spawn(**env, **({"RAILBUS_REDIS_URL": url} if url else {}))
                    await service.ready()
                    await measure(lab, name, (number + 1) * 10_000, count, same=url is not None)
                    service.stop()
    finally:
        redis.kill()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
