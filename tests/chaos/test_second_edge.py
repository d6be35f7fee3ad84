"""Test that every client receives its whole answer although a second edge joins and leaves meanwhile.

Only the clients of the second edge notice: they must resume. ``RAILBUS_TEST_ROUNDS`` sets the number of rounds (default
1; for many rounds, add ``-o faulthandler_timeout=0``). With ``-s``, the figures are printed.
"""

import asyncio
import itertools
import json
import os
import re
import signal
import statistics
import time
from collections import defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest

from schemas.stream import Chunk
from schemas.topics import STREAMS
from services.bus import BusSettings, TailReader, partition_for
from tests.support.brokers import Broker
from tests.support.processes import ServiceProcess
from tests.support.waiting import until

ROUNDS = int(os.environ.get("RAILBUS_TEST_ROUNDS", "1"))
PARTITIONS = 8
TOKENS = 400
STAY_S = 1.0
"""For how many seconds the second edge serves its clients before it is stopped."""

ON_FIRST, ON_SECOND = 32, 8
"""Number of open streams on each edge, half of them over a websocket."""

PATIENCE_S = 120.0
LONGEST_STALL_S = 2.0
"""By how many seconds a reader's longest wait for an op may exceed the engine's longest pause."""

BODY = {
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "model": f"simulated-n{TOKENS}",
    "max_tokens": TOKENS,
    "railbus": {"deadlines": {"ttft_ms": 30_000, "stall_ms": 30_000, "total_ms": 120_000}, "fallback": "off"},
}


class Edge(ServiceProcess):
    @property
    def homes(self):
        """Return the edge's home partitions, as the newest line of its log names them."""
        lines = re.findall(r"home partitions: (.*)", self.stderr)
        return set(map(int, lines[-1].split(", "))) if lines else set()


class Log:
    """Collects the chunks that are written to the stream log. It reads them from the broker, not through an edge."""

    def __init__(self, bus):
        self.chunks = defaultdict(dict)
        self._tail = TailReader(bus, handler=self._take, record_filter=lambda kind, _: kind == "Chunk")

    @asynccontextmanager
    async def read(self):
        reading = asyncio.create_task(self._tail.run())
        try:
            for number in range(PARTITIONS):
                await self._tail.follow(STREAMS, number, "end")
            yield
        finally:
            reading.cancel()
            await asyncio.wait({reading})

    def tokens(self, request_id):
        return sum(chunk.tokens for chunk in self.chunks[request_id].values())

    def text(self, request_id):
        return "".join(chunk.text for _, chunk in sorted(self.chunks[request_id].items()))

    def longest_gap_s(self, request_id):
        times = [chunk.at for _, chunk in sorted(self.chunks[request_id].items())]
        return max(second - first for first, second in itertools.pairwise(times)) / 1e6

    def _take(self, records):
        for record in records:
            if isinstance(record.event, Chunk):
                self.chunks[record.event.request_id][record.event.seq] = record.event


class Reader:
    """A client that reads one answer.

    Attributes:
        ids: Positions of the received ops.
        whole: Whether the answer was received up to its end.
        broken: The error that ended the stream, or None.
    """

    def __init__(self):
        self.request_id = ""
        self.text = ""
        self.ids = []
        self.longest_gap_s = 0.0
        self.whole = False
        self.broken = None
        self._last = None

    def take(self, op_id, text):
        now = time.monotonic()
        if self._last is not None:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
        self._last = now
        self.ids.append(tuple(map(int, op_id.split(":"))))
        self.text += text

    @property
    def last_id(self):
        return ":".join(map(str, self.ids[-1]))

    @property
    def is_over(self):
        return self.whole or self.broken is not None

    async def over_http(self, http, url, *, resume=False):
        """Ask for an answer or ``resume`` it, and read its chat chunks up to the end."""
        if resume:
            call = http.get(f"{url}/v1/chat/completions/{self.request_id}", headers={"Last-Event-ID": self.last_id})
        else:
            call = http.post(f"{url}/v1/chat/completions", json=BODY | {"stream": True})
        async with call as response:
            assert response.status == 200, await response.text()
            self.request_id = response.headers["X-Request-Id"].removeprefix("chatcmpl-")
            op_id = None
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "id":
                    op_id = value
                elif name == "data" and value == "[DONE]":
                    self.whole = True
                elif name == "data":
                    self._chunk(op_id, json.loads(value))

    def _chunk(self, op_id, chunk):
        if "error" in chunk:
            self.broken = chunk["error"]
        else:
            self.take(op_id, chunk["choices"][0]["delta"].get("content") or "")


async def over_websocket(http, url, readers, *, resume=False):
    """Read the answers of all readers over one websocket, until all have ended or the connection is closed.

    If ``resume`` is true, resume answers instead of asking for new ones. Return the websocket's close code.
    """
    by_id = {reader.request_id: reader for reader in readers if resume}
    async with http.ws_connect(f"{url}/v1/stream") as socket:
        for number, reader in enumerate(readers):
            if resume:
                await socket.send_json({"type": "resume", "request_id": reader.request_id, "after": reader.last_id})
            else:
                await socket.send_json({"type": "ask", "ref": number} | BODY)
        async for message in socket:
            said = json.loads(message.data)
            if said.get("type") == "accepted" and not resume:
                by_id[said["request_id"]] = readers[said["ref"]]
                readers[said["ref"]].request_id = said["request_id"]
            elif said.get("type") == "error":
                by_id[said["request_id"]].broken = said["error"]
            elif "op" in said:
                reader = by_id[said["request_id"]]
                reader.take(said["id"], said["text"] if said["op"] == "show" else "")
                reader.whole = said["op"] == "close" and said["outcome"] == "completed"
            if all(reader.is_over for reader in readers):
                break
    return socket.close_code


class People:
    """The readers of one edge. Half of them read over HTTP, the others over one common websocket."""

    def __init__(self, http, url, count, stack):
        stack.push_async_callback(self._cancel)
        self.on_http = [Reader() for _ in range(count // 2)]
        self.on_socket = [Reader() for _ in range(count // 2)]
        self._http = http
        self._start(url)

    @property
    def all(self):
        return self.on_http + self.on_socket

    def _start(self, url, **how):
        self._tasks = [asyncio.create_task(reader.over_http(self._http, url, **how)) for reader in self.on_http]
        self._tasks.append(asyncio.create_task(over_websocket(self._http, url, self.on_socket, **how)))

    async def _cancel(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def begin(self):
        """Wait until every reader has received text.

        Raises:
            Exception: A reader failed, for example because an edge refused its request.
        """

        def all_have_begun():
            for task in self._tasks:
                if task.done():
                    task.result()
            return all(reader.text for reader in self.all)

        await until(all_have_begun, "all answers have begun", within_s=PATIENCE_S)

    async def end(self):
        """Wait until every reader has finished. Return the close code of the readers' common websocket."""
        async with asyncio.timeout(PATIENCE_S):
            return (await asyncio.gather(*self._tasks))[-1]

    def resume(self, url):
        for reader in self.all:
            reader.broken = None
        self._start(url, resume=True)


@pytest.mark.slow
async def test_a_second_edge_joins_and_leaves_and_no_stream_stalls(tmp_path):
    broker = Broker("embedded", tmp_path / "data")
    broker.start()
    env = {
        "RAILBUS_KAFKA_BOOTSTRAP": broker.address,
        "RAILBUS_PARTITIONS": str(PARTITIONS),
        "RAILBUS_ENGINE": "simulated",
        "RAILBUS_SIM_DRAFT": "none",
        "RAILBUS_SIM_TIME_SCALE": "10",  # an answer lasts longer than the second edge, with its start
        "RAILBUS_EDGE_PORT": "0",
        "RAILBUS_INPUT_GATE": "off",
        "RAILBUS_OUTPUT_CHECK": "off",
        "RAILBUS_CLIENT_GRACE_MS": "30000",
    }
    edge_env = env | {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "3000"}  # heartbeats, and with them rebalances, every second
    log = Log(replace(BusSettings(), bootstrap=broker.address, partitions=PARTITIONS))
    async with AsyncExitStack() as stack:
        stack.callback(broker.stop)

        async def start(name, env):
            service = (Edge if name == "edge" else ServiceProcess)(f"services.{name}", **env)
            stack.callback(service.kill)
            return service, (await service.ready()).split()[-1]

        await asyncio.gather(start("generator", env), start("router", env))
        first, url = await start("edge", edge_env)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0), read_bufsize=2**20
            )
        )
        await stack.enter_async_context(log.read())
        kept, moved = [], []
        for _ in range(ROUNDS):
            async with AsyncExitStack() as people:
                on_first, on_second = await play(first, url, lambda: start("edge", edge_env), http, people)
            for reader in on_first + on_second:
                await until(lambda it=reader: log.tokens(it.request_id) == TOKENS, "the test has read the log too")
                assert reader.broken is None
                assert reader.whole
                assert reader.text == log.text(reader.request_id)
                assert sorted(set(reader.ids)) == reader.ids, "an op twice, or out of order"
            kept += [(reader.longest_gap_s, log.longest_gap_s(reader.request_id)) for reader in on_first]
            moved += [(reader.longest_gap_s, log.longest_gap_s(reader.request_id)) for reader in on_second]
            assert max(seen - made for seen, made in kept) < LONGEST_STALL_S
            log.chunks.clear()
    print(f"\n{ROUNDS} rounds, {len(kept)} streams on the edge that stays, {len(moved)} on the one that leaves")
    for name, gaps in (("stays", kept), ("leaves, resumed", moved)):
        for what, values in (
            ("longest gap", [seen for seen, _ in gaps]),
            ("beyond the engine's", [s - m for s, m in gaps]),
        ):
            print(f"{name}: {what}: p50 {statistics.median(values):.3f} s, max {max(values):.3f} s")
    print("streams broken: 0")


async def play(first, url, start_second, http, stack):
    """Play one round: a second edge joins, serves clients, and leaves.

    Return two lists: the clients of the first edge, and the clients of the second edge.
    """
    everything = set(range(PARTITIONS))
    await until(lambda: first.homes == everything, "the first edge has all partitions")
    on_first = People(http, url, ON_FIRST, stack)
    await on_first.begin()

    second, second_url = await start_second()
    await until(lambda: second.homes and first.homes == everything - second.homes, "the edges share the partitions")
    lost = set(second.homes)
    assert any(partition_for(reader.request_id, PARTITIONS) in lost for reader in on_first.all)
    on_second = People(http, second_url, ON_SECOND, stack)
    await on_second.begin()
    await asyncio.sleep(STAY_S)

    second.signal(signal.SIGTERM)
    assert await on_second.end() == 1001
    for reader in on_second.on_http:
        assert reader.broken["code"] == "server_stopping"
    on_second.resume(url)
    assert await second.ended() == 0
    await until(lambda: first.homes == everything, "the first edge has all partitions again")
    assert not any(reader.is_over for reader in on_first.all), "the answers must be long enough for all this"
    await asyncio.gather(on_first.end(), on_second.end())
    assert all(partition_for(reader.request_id, PARTITIONS) in lost for reader in on_second.all)
    return on_first.all, on_second.all
