"""Check the router's deadlines on hosts whose wall clocks disagree: ``python -m tests.chaos.clocks --skew-s 2``.

Each service has two processes. The clock of one is ahead by ``--skew-s`` seconds, and the clock of the other is behind
by as much. The broker's clock is right.

First, clients ask for answers that come immediately. The deadline of the first token is 3 s, less than the 4 s between
the clocks. Every cutover is wrong, unless the first token was really late by the broker's clock because the machine was
busy.

Then clients ask for answers that do not come. Each request must have a cutover at its deadline, counted from when the
broker appended the request. The delay of a cutover is measured by the broker's clock, so it contains the time from the
broker to the router and back.
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from schemas.requests import Request
from schemas.stream import Chunk, Closed, Cutover
from schemas.topics import REQUESTS, STREAMS
from services.bus import BusSettings, Received, TailReader
from tests.chaos.cluster.tree import PARTITIONS, UNHURRIED, ClusterTree
from tests.integration.rails.lab import copy_patient_policy
from tests.support.waiting import PATIENCE_S, News

TTFT_MS = 3_000
LATE_TTFT_MS = 500
DEADLINES = {"verdict_ms": 10_000, "stall_ms": 10_000, "total_ms": 60_000}


class SkewedTree(ClusterTree):
    """A tree in which the clock of a service's first process is ahead, and the clock of its second one is behind."""

    def __init__(self, folder, skew_s, **options):
        super().__init__(folder, **options)
        self._skew_s = skew_s

    def place(self, service):
        made = super().place(service)
        ahead = sum(place.service == service for place in self.places) % 2
        made.command = ("tests.support.skewed", str(self._skew_s if ahead else -self._skew_s), *made.command)
        return made


class Times:
    """The events that were read from the broker, with the broker's times."""

    def __init__(self, bootstrap):
        self.bus = BusSettings(bootstrap=bootstrap, partitions=PARTITIONS)
        self.at_ms, self.news = {}, News()  # for each request id and class of events, the time of the first event
        self.closed, self.cutovers = {}, []
        self._tail = TailReader(self.bus, handler=self._on_records)

    async def follow(self):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.run())
            for topic in (REQUESTS, STREAMS):
                for number in range(topic.partitions(PARTITIONS)):
                    await self._tail.follow(topic, number, "beginning")

    def _on_records(self, records):
        for record in records:
            event = record.event if isinstance(record, Received) else None
            if isinstance(event, Request | Cutover | Closed) or (isinstance(event, Chunk) and event.attempt == 1):
                self.at_ms.setdefault((event.request_id, type(event)), record.timestamp_ms)
            if isinstance(event, Cutover):
                self.cutovers.append((event.request_id, event.trigger))
            if isinstance(event, Closed):
                self.closed.setdefault(event.request_id, event.outcome)
        self.news.tell()

    def wrong(self):
        """Count the wrong cutovers by trigger.

        A cutover is right if its trigger is ``ttft``, it came at or after the deadline of the first token, and attempt
        1 had no chunk before that deadline. All times are by the broker's clock.
        """
        return Counter(trigger for request_id, trigger in self.cutovers if not self._was_late(request_id, trigger))

    def _was_late(self, request_id, trigger):
        asked_ms, at_ms = (self.at_ms[request_id, kind] for kind in (Request, Cutover))
        first_ms = self.at_ms.get((request_id, Chunk), at_ms)
        return trigger == "ttft" and min(first_ms, at_ms) >= asked_ms + TTFT_MS


async def ask(http, edge, number, model, ttft_ms):
    """Ask an edge for an answer, wait for its end, and return the request's id."""
    body = {
        "model": model, "messages": [{"role": "user", "content": f"Tell me story number {number}."}], "max_tokens": 60,
        "railbus": {"deadlines": {**DEADLINES, "ttft_ms": ttft_ms}},
    }  # fmt: skip
    async with http.post(f"{edge}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        await response.read()
        return response.headers["X-Request-Id"].removeprefix("chatcmpl-")


async def play(folder, *, skew_s, healthy, late, at_once):
    """Start a ``SkewedTree``, send requests, and check that no process failed.

    First, send ``healthy`` requests, whose answers start without delay. Then send ``late`` requests, whose first token
    does not come before the deadline. At most ``at_once`` requests are open at the same time.

    Return four values: the ``Times``, the ids of the healthy requests, the ids of the late requests, and the result of
    ``Times.wrong`` for the healthy requests.
    """
    (folder / "policy").mkdir()
    tree = SkewedTree(
        folder, skew_s, policy=copy_patient_policy(folder / "policy"), scale=0.5, with_cloud=True, nodes=0,
        env=UNHURRIED,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        stack.push_async_callback(tree.close)
        await tree.open()
        http = await stack.enter_async_context(aiohttp.ClientSession())
        times = Times(tree.bootstrap)
        following = asyncio.create_task(times.follow())
        try:
            edges, room = tree.edges(), asyncio.Semaphore(at_once)

            async def one(number, model, ttft_ms):
                async with room:
                    return await ask(http, edges[number % len(edges)], number, model, ttft_ms)

            soon = await asyncio.gather(*(one(n, "simulated-n60", TTFT_MS) for n in range(healthy)))
            await times.news.until(lambda: set(soon) <= times.closed.keys(), within_s=PATIENCE_S)
            wrong = times.wrong()
            never = await asyncio.gather(*(one(n, "simulated-n60-slow30000", LATE_TTFT_MS) for n in range(late)))
            await times.news.until(lambda: set(never) <= times.closed.keys(), within_s=PATIENCE_S)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        assert tree.trouble == []
    return times, soon, never, wrong


def late_ms(times, never):
    """Return the time from each late request's deadline to its cutover, by the broker's clock, in ascending order.

    All returned times are in milliseconds.

    Args:
        times: The events that were read from the broker.
        never: Ids of the late requests, whose first token does not come before the deadline.
    """
    return sorted(
        times.at_ms[request_id, Cutover] - times.at_ms[request_id, Request] - LATE_TTFT_MS for request_id in never
    )


async def main():
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.clocks", description=__doc__)
    parser.add_argument("--skew-s", type=float, nargs="+", default=[0.0, 2.0], help="one tree for each")
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--late", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=4)
    given = parser.parse_args()
    print("| clocks | healthy: outcomes, wrong cutovers | late: cutovers | after the deadline, min / p50 / p99 / max |")
    print("|---|---|---|---|")
    for skew_s in given.skew_s:
        with tempfile.TemporaryDirectory() as folder:
            times, soon, never, wrong = await play(
                Path(folder), skew_s=skew_s, healthy=given.healthy, late=given.late, at_once=given.at_once
            )
        late = late_ms(times, never)
        outcomes = dict(Counter(times.closed[request_id] for request_id in soon))
        print(
            f"| +-{skew_s} s | {outcomes}, {wrong.total()} | {len(late)} of {len(never)} | {late[0]} /"
            f" {late[len(late) // 2]} / {late[int(len(late) * 0.99)]} / {late[-1]} ms |",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
