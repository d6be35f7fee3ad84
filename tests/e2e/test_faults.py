"""Test that clients get whole answers although the generator is killed or their connections break."""

import asyncio
import json
from collections import defaultdict

import pytest

from services.cli.client.chat_request import ChatRequest
from services.cli.client.edge_client import EdgeAddress, ask_edge
from services.stream import Close, Restart, Show, apply
from tests.support.tree import running_tree

STREAMS = 50
TOTAL_MS, STALL_MS = 120_000, 8_000
"""The total deadline and the stall deadline of each request, in milliseconds.

A dead generator is noticed after the stall deadline. A busy machine delays a live generator for less.
"""


class Reader:
    """A client: the text on its screen, and the ops that led to this text."""

    def __init__(self):
        self.request_id = ""
        self.ops = []
        self.visible = ""

    def take(self, answered):
        self.request_id = answered.request_id
        self.ops.append(answered.op)
        self.visible = apply(self.visible, answered.op)

    @property
    def closes(self):
        return [op for op in self.ops if isinstance(op, Close)]


async def read(url, model, reader):
    question = ChatRequest(
        prompt="Tell me a long story.", model=model, max_tokens=400, total_ms=TOTAL_MS, stall_ms=STALL_MS
    )
    await ask_edge(question, EdgeAddress(url), reader.take)


def runs_on_the_log(tree):
    """Return the texts of all runs of each request.

    The texts are joined here from the chunks on the log. So they do not depend on the fold, which is under test.
    """
    done = tree.railbus("tail", "--topic", "streams", "--from", "beginning", "--no-follow", "--json")
    assert done.returncode == 0, done.stderr
    chunks = defaultdict(lambda: defaultdict(dict))
    for record in map(json.loads, done.stdout.splitlines()):
        if record.get("kind") == "Chunk":
            event = record["event"]
            chunks[event["request_id"]][event["run"]].setdefault(event["seq"], event["text"])
    return {
        request_id: ["".join(text for _, text in sorted(run.items())) for run in runs.values()]
        for request_id, runs in chunks.items()
    }


async def test_a_killed_generator_restarts_the_answers_of_fifty_streams(tmp_path):
    """Without a fallback to the cloud, the restarted generator answers the interrupted requests from the beginning."""
    # So slow that each answer lasts ten seconds: all are still under way when the generator is killed.
    with running_tree(tmp_path, "--engine", "simulated", RAILBUS_SIM_TIME_SCALE="6") as tree:
        url = tree.url
        people = [Reader() for _ in range(STREAMS)]
        reading = [asyncio.create_task(read(url, "simulated-n400", reader)) for reader in people]
        async with asyncio.timeout(60):
            while not all(any(isinstance(op, Show) for op in reader.ops) for reader in people):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not any(reader.closes for reader in people), "the answers must be long enough to be interrupted"
        await asyncio.to_thread(tree.kill, "generator")
        await asyncio.gather(*reading)

        runs = await asyncio.to_thread(runs_on_the_log, tree)
        for reader in people:
            assert len(reader.closes) == 1
            assert reader.closes[0].outcome == "completed", reader.closes
            assert reader.visible in runs[reader.request_id], "what stands on the screen is no run's text"
        assert sum(any(isinstance(op, Restart) for op in reader.ops) for reader in people) > 0

        afterwards = [Reader() for _ in range(5)]
        await asyncio.gather(*(read(url, "simulated-n20", reader) for reader in afterwards))
        assert [reader.closes[0].outcome for reader in afterwards] == ["completed"] * 5


class Cutter:
    """A TCP proxy that cuts every connection after it has forwarded ``after`` bytes of the response."""

    def __init__(self, port, after):
        self.port = port
        self.after = after
        self.connections = 0
        self.open = set()

    async def serve(self, reader, writer):
        self.connections += 1
        self.open.add(asyncio.current_task())
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.port)
        pumps = [
            asyncio.create_task(self._pump(reader, upstream_writer, None)),
            asyncio.create_task(self._pump(upstream_reader, writer, self.after)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            upstream_writer.transport.abort()
            self.open.discard(asyncio.current_task())

    @staticmethod
    async def _pump(source, target, budget):
        while data := await source.read(4096):
            if budget is not None:
                data, budget = data[:budget], budget - len(data)
            target.write(data)
            await target.drain()
            if budget is not None and budget <= 0:
                return


@pytest.mark.parametrize("after", [700, 1_500, 3_000])
async def test_repeatedly_broken_connection_loses_and_repeats_nothing(tree, after):
    cutter = Cutter(int(tree.url.rsplit(":", 1)[1]), after)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader = Reader()
    async with server:
        await read(f"http://127.0.0.1:{port}", "simulated-n120", reader)
        async with asyncio.timeout(30):
            while cutter.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert cutter.connections > 1
    assert [close.outcome for close in reader.closes] == ["completed"]
    runs = await asyncio.to_thread(runs_on_the_log, tree)
    assert runs[reader.request_id] == [reader.visible]
