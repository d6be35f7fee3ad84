"""Measure how many chunks per second `railbus audit rejudge` reads from Parquet files and judges on one CPU core.

    python -m tests.bench.rejudge [--streams 500] [--chars 4] [--chunks 200] [--policy default]

The archive is made first and is not part of the measured time. Reading, decoding and judging are measured by the CPU
time of the process. The archived traffic was recorded under the same policy, so judging it again should give
the same recalls.
"""

import argparse
import asyncio
import gc
import json
import tempfile
import time
from pathlib import Path

from schemas.topics import STREAMS
from services.archive.reader import Archive
from services.archive.store import Store
from services.archive.traffic import Traffic
from services.policy import load
from services.safety.rejudge.compare import compare
from services.safety.rejudge.policy_replay import KINDS, PolicyReplay
from services.safety.rejudge.program import build_checks
from tests.bench.safety_throughput import additions, events
from tests.support.archives import make_archive, stored
from tests.support.recorded import recorded

ROOT = Path(__file__).resolve().parents[2]


async def measure(args) -> dict:
    policy = load(ROOT / "policies" / args.policy)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "archive"
        log = await recorded(policy, events(args.streams, args.chunks, args.chars))
        make_archive(folder, stored(log, STREAMS.name), per_file=100_000)
        count = len(log)
        checks = await build_checks(policy)
        replay = PolicyReplay(policy, checks, lambda _: True)
        del log
        gc.collect()
        gc.freeze()  # as the command does
        gc.set_threshold(100_000)
        before = additions()
        traffic = Traffic(archive=Archive(Store(str(folder))))
        begun, wall = time.process_time(), time.monotonic()
        async for partition, records in traffic.events([STREAMS], KINDS):
            await replay.take(partition, records)
        spent, wall = time.process_time() - begun, time.monotonic() - wall
        found = compare(replay.runs)
        for check in checks.values():
            await check.close()
        begun = time.process_time()
        async for _ in traffic.events([STREAMS], KINDS):
            pass
        reading = time.process_time() - begun
        return {
            "chunks": replay.chunks,
            "records": count,
            "chunks_per_cpu_s": round(replay.chunks / spent),
            "chunks_per_s": round(replay.chunks / wall),
            "reading_alone_chunks_per_cpu_s": round(replay.chunks / reading),
            "recalls_the_same": found.same,
            "recalls_different": len(found.differences),
            "million_additions_per_s": [round(before, 1), round(additions(), 1)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--chars", type=int, default=4)
    parser.add_argument("--policy", default="default")
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
