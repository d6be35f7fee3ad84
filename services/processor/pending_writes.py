"""Give events to the Kafka producer in order, and wait for their acknowledgement."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from schemas.base import Event
from schemas.errors import MalformedEvent
from services.bus import BusError, EventRejected, Position, Producer
from services.processor.core import RecordPosition, Write
from services.runtime.errors import UnavailableError, UserError
from services.runtime.logging import logger

_log = logger("processor")


class PendingWrites:
    """Gives events to the producer in order. If the producer's buffer is full, events wait in an unlimited queue."""

    def __init__(
        self,
        producer: Producer | None,
        *,
        group: str,
        holds: Callable[[str], bool],
        on_sent: Callable[[], None],
        on_finished: Callable[[RecordPosition], None],
        on_written: Callable[[Write], None] | None,
        on_not_written: Callable[[Write], None] | None,
    ) -> None:
        self._producer = producer
        self._group = group
        self._holds = holds
        self._on_sent = on_sent
        self._on_finished = on_finished
        self._on_written = on_written
        self._on_not_written = on_not_written
        self._queue: deque[Write] = deque()
        self._queue_filled = asyncio.Event()
        self._posting = False
        self._unacknowledged = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """Whether any event is still queued or unacknowledged."""
        return bool(self._queue or self._unacknowledged)

    def append(self, write: Write) -> None:
        if self._queue or self._posting or not self._post_now(write):
            self._queue.append(write)
            self._queue_filled.set()

    async def send(self) -> None:
        """Give queued events to the producer until cancelled.

        Raises:
            BusError: The producer accepts no more events. If another error ended the producer, this error is raised.
        """
        while True:
            await self._queue_filled.wait()
            self._queue_filled.clear()
            while self._queue:
                await self._post(self._queue.popleft())
                self._on_sent()

    def _post_now(self, write: Write) -> bool:
        # False means that the event must be queued. Without a producer, ``_post`` then raises an error.
        if self._producer is None or self._is_void(write):
            return self._producer is not None
        try:
            acknowledged = self._producer.post_now(write.topic, write.event, traceparent=write.traceparent)
        except MalformedEvent as error:
            self._give_up(write, error)
            return True
        except (BusError, UserError, UnavailableError):
            return False  # ``send`` gets the same error and raises it
        if acknowledged is not None:
            self._note_posted(write, acknowledged)
        return acknowledged is not None

    async def _post(self, write: Write) -> None:
        if self._producer is None:
            raise RuntimeError(f"group {self._group} has no producer, and its core writes {type(write.event).__name__}")
        if self._is_void(write):
            return
        self._posting = True
        try:
            acknowledged = await self._producer.post(write.topic, write.event, traceparent=write.traceparent)
        except MalformedEvent as error:
            self._give_up(write, error)
        else:
            self._note_posted(write, acknowledged)
        finally:
            self._posting = False

    def _is_void(self, write: Write) -> bool:
        event = write.event
        if not isinstance(event, Event) or self._holds(event.request_id):
            return False
        self._finish(write)
        return True

    def _give_up(self, write: Write, error: MalformedEvent) -> None:
        # For example, a prompt may exceed the size limit when a service writes it again.
        _log.error("%s: an event cannot be written: %s", self._group, error)
        self._finish(write)

    def _note_posted(self, write: Write, acknowledged: asyncio.Future[Position]) -> None:
        self._unacknowledged += 1
        acknowledged.add_done_callback(partial(self._on_acknowledged, write))
        if self._on_written is not None:
            self._on_written(write)

    def _on_acknowledged(self, write: Write, ack: asyncio.Future[Position]) -> None:
        self._unacknowledged -= 1
        error = None if ack.cancelled() else ack.exception()
        if error is not None and isinstance(error, BusError):
            _log.warning("%s: an event was not written: %s", self._group, error)
            if self._on_not_written is not None:
                self._on_not_written(write)
        if write.done is not None and (error is None or isinstance(error, EventRejected)):  # it is not tried again
            self._on_finished(write.done)

    def _finish(self, write: Write) -> None:
        if write.done is not None:
            self._on_finished(write.done)
