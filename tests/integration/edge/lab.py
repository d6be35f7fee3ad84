"""A lab with a real log and real edges. The test writes the events of workers, rails, safety and router."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import orjson

from schemas.requests import Request
from schemas.side_events import Attached, Detached
from schemas.topics import RECEIPTS, REQUESTS, REQUESTS_BATCH, STREAMS
from services.bus import BusSettings, Producer, Received, TailReader, ensure_topics
from services.edge.service import EdgeService
from services.edge.settings import Settings
from tests.support.bus import any_role
from tests.support.edge_answers import AnswerWriter, plain_answer, sse_events
from tests.support.processes import ROOT
from tests.support.waiting import until

PATIENCE_S = 60.0
PARTITIONS = 4
WIDE = ROOT / "tests" / "data" / "wide-deadlines"
UNGOVERNED = {"input_gate": "off", "output_check": "off"}
"""With these settings, only the ``Started`` that a test writes says whether text waits for checks."""
ASK = {"messages": [{"role": "user", "content": "hello"}]}


class EdgeLab:
    """A log that the test reads and writes, and the edges that the test has started."""

    def __init__(self, bus: BusSettings) -> None:
        self.bus = bus
        self.http: Any = None
        self._producer = Producer(bus, role=any_role(), name="test")
        self._tail = TailReader(bus, handler=self._take)
        self._read: list[Received] = []
        self._answered: set[str] = set()
        self._news = asyncio.Event()
        self._edges: list[asyncio.Task[None]] = []
        self.edges: dict[str, EdgeService] = {}

    async def open(self) -> None:
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))
        await ensure_topics(self.bus)
        await self._producer.start()
        self._reading = asyncio.create_task(self._tail.run())
        for topic in (REQUESTS, REQUESTS_BATCH, RECEIPTS):
            for number in range(PARTITIONS):
                await self._tail.follow(topic, number, "end")

    async def close(self) -> None:
        await self.http.close()
        for task in (*self._edges, self._reading):
            task.cancel()
        await asyncio.gather(*self._edges, self._reading, return_exceptions=True)
        await self._producer.stop()

    async def edge(self, **settings: Any) -> str:
        """Start an edge and return its URL."""
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # Long timeouts for tests that are not about timeouts, because the machine may be busy.
        patient = {"request_timeout_ms": 600_000, "hello_timeout_ms": 600_000}
        defaults = {"edge_port": 0, "bus": self.bus, "edge_drain_ms": 0, "policy": WIDE} | UNGOVERNED | patient
        edge = EdgeService(Settings(**(defaults | settings)))
        task = asyncio.create_task(edge.run(url.set_result))
        self._edges.append(task)
        await asyncio.wait({task, url}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        assert url.done(), "the edge is not ready in time"
        self.edges[url.result()] = edge
        return url.result()

    async def stop_edges(self) -> None:
        """Stop the edges as SIGTERM does."""
        for task in self._edges:
            task.cancel()
        await asyncio.gather(*self._edges, return_exceptions=True)

    async def next_request(self) -> Request:
        """Wait for the next request that this method has not returned yet, and return the request."""
        return await self.until(self._unanswered_request)

    async def next_writer(self, **options: Any) -> AnswerWriter:
        """Wait for the next request, and return an ``AnswerWriter``, which makes the events of its answer."""
        request = await self.next_request()
        return writer_for(request, **options)

    async def write(self, *events: Any) -> None:
        """Write events to the stream log, and wait for the acknowledgement."""
        acks = [await self._producer.post(STREAMS, event) for event in events]
        await asyncio.gather(*acks)

    async def answer(self, *texts: str, **options: Any) -> Request:
        """Wait for the next request, write a whole answer to it, and return the request."""
        request = await self.next_request()
        await self.write(*plain_answer(request.request_id, texts, tenant=request.tenant, **options))
        return request

    async def write_plain(self, request: Request, *texts: str) -> None:
        """Write a whole answer to a request. The request itself need not be on the log."""
        await self.write(*plain_answer(request.request_id, texts, tenant=request.tenant))

    async def until_text(self, url: str, text: bytes) -> None:
        """Read the answer at ``url`` again and again until it contains ``text``."""

        async def has_text() -> bool:
            async with self.http.get(url) as response:
                return text in await response.read()

        await until(has_text, "the text did not come")

    async def until_open(self, url: str, count: int = 1) -> None:
        """Wait until an edge has at least ``count`` open streams."""
        await until(lambda: len(self.edges[url]._hub) >= count, "no open stream")

    async def ask(self, url: str, texts: tuple[str, ...] = ("Hello ", "world"), **body: Any) -> tuple[Request, bytes]:
        """Send a streaming request over HTTP, and write an answer with ``texts`` to the log.

        Return the request and the bytes of the response.
        """
        async with self.open_stream(url, **body) as client:
            request = await self.answer(*texts)
            return request, await client.rest()

    @asynccontextmanager
    async def open_stream(self, url: str, **body: Any) -> AsyncIterator["SseReader"]:
        """Send a streaming request over HTTP, and yield the reader of the response."""
        client = SseReader(self.http.post(f"{url}/v1/chat/completions", json=ASK | {"stream": True} | body))
        try:
            yield client
        finally:
            await client.close()

    def receipts(self, kind: type[Any], request_id: str | None = None) -> list[Any]:
        """Return all receipts of the type ``kind`` so far, of one request or of all requests."""
        events = [record.event for record in self._read if isinstance(record.event, kind)]
        return [event for event in events if request_id is None or event.request_id == request_id]

    async def detached(self, request_id: str, count: int = 1) -> Detached:
        """Wait until ``count`` connections of the request have ended, and return the last ``Detached``."""
        await self.until(lambda: len(self.receipts(Detached, request_id)) >= count)
        receipts = self.receipts(Detached, request_id)
        assert len(receipts) == count
        assert len(self.receipts(Attached, request_id)) >= count
        return receipts[-1]

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until ``found`` returns a true value, and return this value."""
        async with asyncio.timeout(PATIENCE_S):
            while not (value := found()):
                self._news.clear()
                await self._news.wait()
            return value

    def _unanswered_request(self) -> Request | None:
        for record in self._read:
            if isinstance(record.event, Request) and record.event.request_id not in self._answered:
                self._answered.add(record.event.request_id)
                return record.event
        return None

    def _take(self, records: Any) -> None:
        self._read.extend(record for record in records if isinstance(record, Received))
        self._news.set()


class SseReader:
    """A client that reads a stream of server-sent events.

    It sends its request in a task, so a test can write events to the log before the edge responds.
    """

    def __init__(self, call: Any) -> None:
        self._opening = asyncio.create_task(_opened(call))
        self.seen = b""

    async def until(self, text: bytes) -> bytes:
        """Read until the text arrives, and return all bytes so far."""
        response = await self._opening
        while text not in self.seen:
            assert not response.content.at_eof(), self.seen
            self.seen += await response.content.readany()
        return self.seen

    async def rest(self) -> bytes:
        """Read to the end, and return all bytes."""
        self.seen += await (await self._opening).read()
        return self.seen

    async def close(self) -> None:
        """Disconnect."""
        self._opening.cancel()
        done, _ = await asyncio.wait({self._opening})
        for task in done:
            if not task.cancelled() and task.exception() is None:
                task.result().close()


async def _opened(call: Any) -> Any:
    return await call


def writer_for(request: Request, **options: Any) -> AnswerWriter:
    """Return an ``AnswerWriter``, which makes the events of the request's answer."""
    return AnswerWriter(request.request_id, request.tenant, delivery=request.delivery, **options)


@asynccontextmanager
async def open_lab(address: str) -> AsyncIterator[EdgeLab]:
    """Open a lab for the ``with`` block, and close it at the end in any case."""
    lab = EdgeLab(replace(BusSettings(), bootstrap=address, partitions=PARTITIONS))
    await lab.open()
    try:
        yield lab
    finally:
        await lab.close()


def deltas(data: bytes) -> str:
    """Return the text that an OpenAI client shows: all deltas of the stream, joined."""
    text = ""
    for chunk in chunks(data):
        for choice in chunk.get("choices", ()):
            text += choice["delta"].get("content") or ""
    return text


def chunks(data: bytes) -> list[dict[str, Any]]:
    """Return the parsed JSON of each event of a stream, except ``[DONE]``."""
    return [orjson.loads(event["data"]) for event in sse_events(data) if event["data"] != b"[DONE]"]
