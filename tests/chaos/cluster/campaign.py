"""Run one campaign: start the tree and the clients, inject faults, and check the log and what the clients received."""

import asyncio
import itertools
import random
import time
from contextlib import AsyncExitStack

import aiohttp

from tests.chaos.cluster.clients import Person
from tests.chaos.cluster.faults import Striker, roll
from tests.chaos.cluster.oracle import judge, read_log
from tests.chaos.cluster.recovery import blame, recovery
from tests.chaos.cluster.tree import UNHURRIED, ClusterTree
from tests.integration.rails.lab import copy_patient_policy
from tests.support.waiting import comes_true

DRAIN_S = 240.0
"""How many seconds requests may take to end after the last fault. It is longer than their total deadline."""

DEADLINES = {"verdict_ms": 10_000, "ttft_ms": 30_000, "stall_ms": 8_000, "total_ms": 120_000}
BEFORE_S = 5.0


class Campaign:
    """The state that the clients and the faults share.

    Attributes:
        stopping: Whether the clients send no more requests.
        open_readers: The ``Reader`` of each request that has not ended.
        readers: The ``Reader`` of each request that has ended.
        refused: Number of requests that were not accepted by an edge.
    """

    def __init__(self):
        self.stopping = False
        self.open_readers, self.readers = set(), []
        self.refused = 0


def bodies(rng, tokens):
    """Yield the clients' requests, each with a different prompt.

    10 % of the answers contain an e-mail address, which is redacted. 3 % contain a forbidden code name.
    """
    for number in itertools.count():
        length = rng.randint(tokens // 2, tokens)
        draw = rng.random()
        place = rng.randrange(5, length - 5)
        script = f"n{length}" + (f"-mail{place}" if draw < 0.1 else f"-leak{place}" if draw < 0.13 else "")
        yield {
            "messages": [{"role": "user", "content": f"Tell me story number {number}, of {rng.random()}."}],
            "model": f"simulated-{script}",
            "max_tokens": length,
            "railbus": {"deadlines": DEADLINES, "restart": "marker"},
        }


async def play(
    folder, *, minutes, streams, seed, every_s, tokens, scale, with_cloud=True, rolling=0, nodes=3, say=print
):  # fmt: skip
    """Run one campaign. Return the findings, the recovery times for each kind of fault, and a few figures.

    If ``rolling`` is 0, inject random faults for ``minutes``. Otherwise, restart each process ``rolling`` times.
    """
    rng = random.Random(seed)
    campaign = Campaign()
    (folder / "policy").mkdir()
    tree = ClusterTree(
        folder, policy=copy_patient_policy(folder / "policy"), scale=scale, with_cloud=with_cloud, nodes=nodes,
        env=UNHURRIED if rolling else None,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        stack.push_async_callback(tree.close)
        began = time.monotonic()
        await tree.open()
        say(f"the tree serves after {time.monotonic() - began:.0f} s")
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60),
                connector=aiohttp.TCPConnector(limit=0),
                read_bufsize=2**20,
            )
        )
        watching = asyncio.create_task(tree.watch())
        began = time.monotonic()
        asked = bodies(rng, tokens)
        people = [asyncio.create_task(Person(http, tree.edges, rng, asked, campaign).live()) for _ in range(streams)]
        talking = asyncio.create_task(_report(campaign, began, say))
        striker = Striker(tree, random.Random(seed + 1), every_s, campaign)
        try:
            await asyncio.sleep(BEFORE_S)
            if rolling:
                faults = await roll(tree, rolling, campaign)
            else:
                await striker.run(began + minutes * 60)
                await striker.settle()
                faults = striker.faults
            lasted = time.monotonic() - began
            campaign.stopping = True
            await comes_true(lambda: all(person.done() for person in people), DRAIN_S)
            for reader in campaign.open_readers:
                reader.over = f"lost: open {DRAIN_S:.0f} s after the last fault, {len(reader.received)} ops"
            campaign.readers += campaign.open_readers
            for person in people:
                if person.done() and person.exception() is not None:
                    tree.trouble.append(f"a client failed: {person.exception()!r}")
            await asyncio.sleep(10)  # requests whose clients never heard of them close by themselves
        finally:
            for task in (*people, talking, watching):
                task.cancel()
            await asyncio.gather(*people, talking, watching, return_exceptions=True)
        say("reading the topics")
        told, dead = await read_log(tree.bootstrap)
        found = judge(told, dead, campaign.readers)
        for line in tree.trouble:
            found.wrong("process", "", line)
    figures = {
        "seconds": lasted, "faults": len(faults), "refused": campaign.refused,
        "taken twice": blame(found.double_takes, faults),
    }  # fmt: skip
    return found, recovery(faults), figures


async def _report(campaign, began, say):
    while True:
        await asyncio.sleep(30)
        ops = sum(len(reader.received) for reader in campaign.readers)
        say(f"{time.monotonic() - began:.0f} s: {len(campaign.readers)} answers, {ops} ops, refused {campaign.refused}")


def report(found, rows, figures):
    """Return the result of a campaign as text."""
    kinds = ("lost", "twice", "mixed", "withdrawn", "dead", "process")
    counted = {kind: sum(violation[0] == kind for violation in found.violations) for kind in kinds}
    first = (
        f"{figures['seconds']:.0f} s, {found.requests} requests, {found.chunks} chunks ({found.chunks_again} appended"
        f" twice), {found.ops} ops received, {found.resumes} resumes, {found.recalls} recalls,"
        f" {figures['refused']} refused, {figures['faults']} faults"
    )
    lines = [
        first,
        f"outcomes {dict(found.outcomes)}; cutovers {dict(found.cutovers)}",
        f"taken twice {len(found.double_takes)}: {dict(figures['taken twice'])}",
        f"a stopped attempt's text, said again by the next one: {len(found.said_again)} requests",
        f"clients' ends {dict(found.ends)}",
        f"other ends {dict(found.reasons)}",
        f"violations {counted}",
        f"{'fault':20} {'times':>6} {'never':>6} {'p50 s':>7} {'p99 s':>7} {'max s':>7}",
        *(
            f"{row.kind:20} {row.times:6d} {row.never:6d} "
            + " ".join("      -" if value is None else f"{value:7.2f}" for value in row[3:])
            for row in rows
        ),
    ]
    return "\n".join(lines)
