"""Asking without an edge: the request is put on the log, and the stream log is folded here."""

import asyncio
import os
import secrets
from collections.abc import Sequence
from typing import Final

from schemas.ids import uuid7
from schemas.stream import StreamEvent
from schemas.topics import REQUESTS, STREAMS
from schemas.trace import traceparent_for
from services.bus import BusSettings, Producer, Received, Room, TailReader, Unread, partition_for
from services.cli.answers import Answered, AnswerFailed, Take
from services.cli.question import Question
from services.runtime.clock import now_ms, now_us
from services.stream import Screen

MAX_WAITING: Final = 1_000
"""Events read from the log and not folded yet; reading pauses beyond."""


async def ask_log(question: Question, settings: BusSettings, take: Take) -> None:
    """Hands over the ops of one answer, up to its ``Close``.

    Raises:
        AnswerFailed: It did not close in time.
        UserError: The question has a value out of its bounds.
    """
    request_id = uuid7(now_ms(), secrets.randbits(74))
    follower = _Follower(request_id, settings)
    try:
        async with asyncio.timeout(question.give_up_s), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(follower.reader.run())
            await follower.begin()
            await _put(question, request_id, settings)
            await follower.fold(take)
            reading.cancel()
    except TimeoutError:
        raise AnswerFailed(
            f"request {request_id} was not closed within {question.give_up_s:.0f} s: is there a broker, and a router?"
        ) from None


async def _put(question: Question, request_id: str, settings: BusSettings) -> None:
    producer = Producer(settings, role="operator", name="railbus-ask")
    await producer.start()
    try:
        # Deadlines count from ``at``: it is taken when the connection stands.
        request = question.request(request_id=request_id, at_us=now_us(), source=f"operator/{os.getpid()}")
        trace = traceparent_for(request_id, secrets.randbits(64))
        await producer.send(REQUESTS, request, traceparent=trace)
    finally:
        await producer.stop()


class _Follower:
    """Reads one request's part of the stream log."""

    def __init__(self, request_id: str, settings: BusSettings) -> None:
        key = request_id.encode()
        self._screen = Screen(request_id)
        self._partition = partition_for(request_id, settings.partitions)
        self._room = Room(MAX_WAITING)
        self._came: asyncio.Queue[Received] = asyncio.Queue()  # bounded by the room
        self.reader = TailReader(settings, handler=self._take, wants=lambda _, found: found == key, room=self._room)

    async def begin(self) -> None:
        """From here on nothing is missed."""
        await self.reader.follow(STREAMS, self._partition, "end")

    async def fold(self, take: Take) -> None:
        """Until the request is closed."""
        while self._screen.closed is None:
            record = await self._came.get()
            self._room.give()
            if isinstance(record.event, StreamEvent):
                for index, op in enumerate(self._screen.feed(record.event)):
                    take(Answered(self._screen.request_id, f"{record.partition}:{record.offset}:{index}", op))

    def _take(self, records: Sequence[Received | Unread]) -> None:
        for record in records:
            if isinstance(record, Received):
                self._room.take()
                self._came.put_nowait(record)
