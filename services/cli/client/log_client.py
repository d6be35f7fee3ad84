"""Send a request without an edge: write it to Kafka, and compute the answer from the events of the stream log."""

import asyncio
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from schemas.ids import uuid7
from schemas.requests import Deadlines
from schemas.stream import Failed, StreamEvent
from schemas.topics import REQUESTS, STREAMS
from schemas.trace import traceparent_for
from services.bus import (
    BusSettings,
    InFlightLimit,
    Producer,
    Received,
    TailReader,
    UnreadableRecord,
    partition_counts,
    partition_for,
)
from services.cli.client.answer_ops import AnswerError, AnswerOp, OpHandler
from services.cli.client.chat_request import ChatRequest
from services.runtime.clock import now_ms, now_us
from services.stream import Screen

MAX_UNFOLDED: Final = 1_000
"""Maximum number of events that are read and not folded yet. Beyond it, reading pauses."""


async def ask_log(request: ChatRequest, settings: BusSettings, take: OpHandler) -> None:
    """Send a request, and call ``take`` with each op of the answer. The last op is ``Close``.

    Raises:
        AnswerError: The op ``Close`` was not received in time, or a worker found the request invalid (``bad_request``).
        UserError: The request was not sent, because one of its values is out of bounds.
    """
    request_id = uuid7(now_ms(), secrets.randbits(74))
    timeout_s = request.timeout_s(Deadlines().total_ms)
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
            # Another number of partitions than the services have would be waiting in the wrong partition.
            partitions = (await partition_counts(settings)).get(STREAMS.name, settings.partitions)
            settings = replace(settings, partitions=partitions)
            follower = _AnswerFollower(request_id, settings)
            reading = tasks.create_task(follower.reader.run())
            await follower.begin()
            await _send_request(request, request_id, settings)
            await follower.fold(take)
            reading.cancel()
    except TimeoutError:
        raise AnswerError(
            f"request {request_id} was not closed within {timeout_s:.0f} s: check that the broker at"
            f" {settings.bootstrap} and a router run"
        ) from None
    if follower.request_error is not None:
        raise AnswerError(follower.request_error, usage=True)


async def _send_request(request: ChatRequest, request_id: str, settings: BusSettings) -> None:
    producer = Producer(settings, role="operator", name="railbus-ask")
    await producer.start()
    try:
        # Deadlines count from ``at``, so the time is taken after the connection is open.
        event = request.request(request_id=request_id, at_us=now_us(), source=f"operator/{os.getpid()}")
        trace = traceparent_for(request_id, secrets.randbits(64))
        await producer.send(REQUESTS, event, traceparent=trace)
    finally:
        await producer.stop()


class _AnswerFollower:
    def __init__(self, request_id: str, settings: BusSettings) -> None:
        key = request_id.encode()
        self._screen = Screen(request_id)
        self._partition = partition_for(request_id, settings.partitions)
        self._in_flight = InFlightLimit(MAX_UNFOLDED)
        self._records: asyncio.Queue[Received] = asyncio.Queue()  # bounded by the in-flight limit
        self.request_error: str | None = None
        self.reader = TailReader(
            settings, handler=self._take, record_filter=lambda _, found: found == key, in_flight_limit=self._in_flight
        )

    async def begin(self) -> None:
        await self.reader.follow(STREAMS, self._partition, "end")

    async def fold(self, take: OpHandler) -> None:
        while self._screen.closed is None:
            record = await self._records.get()
            self._in_flight.release()
            event = record.event
            if isinstance(event, Failed) and event.error_class == "bad_request":
                self.request_error = event.message
            if isinstance(event, StreamEvent):
                for index, op in enumerate(self._screen.feed(event, record.timestamp_ms)):
                    take(AnswerOp(self._screen.request_id, f"{record.partition}:{record.offset}:{index}", op))
        if self._screen.closed.outcome != "failed":  # the request was closed for another reason
            self.request_error = None

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        for record in records:
            if isinstance(record, Received):
                self._in_flight.acquire()
                self._records.put_nowait(record)
