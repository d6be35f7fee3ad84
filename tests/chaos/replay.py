"""Check that what clients have received can be reconstructed exactly from the archive.

    python -m tests.chaos.replay [--requests 1000] [--at-once 32] [--seed 1]

A tree with an archiver serves clients. Each client records what it receives. Now and then, it drops its connection and
resumes. At the end, the archived events are folded. The resulting ops must equal the ops that the clients received,
byte for byte, and must match the hash in every receipt.
"""

import argparse
import asyncio
import json
import random
import tempfile
from dataclasses import asdict
from pathlib import Path

import aiohttp

from services.archive.reader import Archive
from services.archive.store import Store
from tests.support.recording import Judged, Recording, judge, receipts_there, record
from tests.support.tree import running_tree
from tests.support.waiting import until

START_S = 180


async def play(tree, archive: Path, *, requests: int, at_once: int, seed: int) -> Judged:
    """Let clients send requests and record what they receive. Compare the recordings with the archive.

    The comparison starts when the archive has the receipts of all connections. Return its result.
    """
    rng, left, recordings = random.Random(seed), iter(range(requests)), []

    async def person(http: aiohttp.ClientSession) -> None:
        while next(left, None) is not None:
            recordings.append(await record(http, tree.url, random.Random(rng.random())))

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=120)) as http:
        await asyncio.gather(*(person(http) for _ in range(at_once)))
    asked: list[Recording] = [each for each in recordings if each.request_id]
    opened = Archive(Store(str(archive)))
    await until(lambda: receipts_there(opened, asked), "every receipt is archived", within_s=120, every_s=4.0)
    return judge(opened, asked)


def tree_with_archive(folder: Path):
    """Within the ``with`` block, run a tree with rails, safety, Vertex emulator, and an archiver that writes often."""
    return running_tree(
        folder, "--engine", "simulated", "--vertex-emulator", "--archive", str(folder / "archive"),
        governed=True, start_s=START_S, RAILBUS_AUDIT_FLUSH_MS="1000",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, tree_with_archive(Path(name)) as tree:
        archive = Path(name) / "archive"
        found = asyncio.run(play(tree, archive, requests=args.requests, at_once=args.at_once, seed=args.seed))
    told = asdict(found)
    told["wrong"] = len(found.wrong)
    print(json.dumps(told, indent=2))
    print("\n".join(found.wrong[:5]))
    raise SystemExit(1 if found.wrong else 0)


if __name__ == "__main__":
    main()
