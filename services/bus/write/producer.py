"""The producer. As long as the process lives, no accepted event is lost in an outage of the broker.

The key of a record decides its partition. A record without a key goes to partition 0. Events of a topic with the same
key keep the order of ``post`` calls. The producer waits for all replicas and retries without limit. It uses an
idempotent producer of aiokafka. If aiokafka's producer gives up a batch, or the broker refuses a batch, a new producer
of aiokafka sends all unacknowledged events again, in order. Only in this case can an event be written twice.
"""

import asyncio
from functools import partial
from typing import Any, Final

from aiokafka.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    kafka_errors,
)

from schemas.base import AnyEvent
from schemas.registry import ByTopic, RoleName, writes
from schemas.topics import Topic
from schemas.wire import encode, key_of
from services.bus.errors import BusError, EventRejected, NotAcknowledged, ProducerClosed
from services.bus.kafka.broker_health import backoff_s
from services.bus.kafka.clients import close_producer, open_producer
from services.bus.partitioner import partition_for
from services.bus.records import UNKNOWN_OFFSET, Partition, Position
from services.bus.settings import BusSettings
from services.bus.write.byte_semaphore import ByteSemaphore
from services.bus.write.outbox import Outbox, OutgoingRecord, may_linger, record_size
from services.runtime.clock import now_ms
from services.runtime.logging import logger
from services.runtime.metrics import PRODUCED, RECORDS_REFUSED, RESENT, UNACKED, UNSENT, labelled

_log = logger("bus")

BUFFER_BYTES: Final = 33_554_432
"""Maximum number of bytes that are accepted and not acknowledged yet (32 MiB). ``post`` waits while an event does not
fit."""

FLUSH_S: Final = 10.0
"""Maximum time in seconds that ``stop`` waits for acknowledgements."""

_NOTHING: Final[frozenset[type[AnyEvent]]] = frozenset()


class _InvalidRecordError(BrokerResponseError):  # type: ignore[misc] # aiokafka has no types
    errno = 87  # which aiokafka does not know
    message = "INVALID_RECORD"


kafka_errors.setdefault(_InvalidRecordError.errno, _InvalidRecordError)

_ONE_OF_BATCH: Final = (MessageSizeTooLargeError, RecordListTooLargeError, _InvalidRecordError)
"""Errors of a batch whose records may be accepted one by one."""

_FOR_GOOD: Final = (
    *_ONE_OF_BATCH,
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)


class Producer:
    """Writes events.

    Args:
        role: The role of the service. The role decides which events the service may write. A service with several roles
            passes the result of ``schemas.registry.writes`` instead.
        name: Client id, shown in the broker's logs. The default is the role, or the text ``this producer`` if there are
            several roles.
    """

    def __init__(self, settings: BusSettings, *, role: RoleName | ByTopic, name: str | None = None) -> None:
        self._settings = settings
        self._role = role if isinstance(role, str) else "this producer"
        self._writes = writes(role) if isinstance(role, str) else role
        self._name = name or self._role
        self._outbox = Outbox()
        self._buffer = ByteSemaphore(BUFFER_BYTES)
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop
        self._pump: asyncio.Task[None] | None = None
        self._session = 0
        self._failures = 0
        self._broken: BaseException | None = None
        self._stopped = False
        self._ended: BaseException | None = ProducerClosed("the producer is not started")

    async def start(self) -> None:
        """Connect. Wait while the broker is unreachable.

        Raises:
            UserError: The broker refuses the credentials, or does not let this user write.
        """
        self._client = await open_producer(self._settings, self._name)
        self._loop = asyncio.get_running_loop()
        self._ended, self._stopped = None, False
        self._pump = asyncio.create_task(self._run(), name=f"{self._name}-producer")

    async def watch(self) -> None:
        """Wait until the producer fails for good. Then raise its error."""
        if self._pump is not None:
            await asyncio.shield(self._pump)

    async def stop(self) -> None:
        """Wait up to ``FLUSH_S`` for acknowledgements, log the number of unacknowledged events, and close."""
        if self._pump is None or self._stopped:
            return
        self._stopped = True
        self._ended = self._ended or ProducerClosed("the producer is stopped")
        self._wake.set()
        try:
            async with asyncio.timeout(FLUSH_S):
                while self._outbox.count:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            pass  # the unacknowledged events are logged below
        finally:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._abandon(NotAcknowledged("the producer stopped before the broker acknowledged this event"))
            await close_producer(self._client)

    def abort(self, error: Exception) -> None:
        """Send nothing more. From now on ``post`` raises ``error``, and ``stop`` waits for no acknowledgement.

        If this is called from the callback of an event that the broker refused, no later event of this event's
        partition reaches the log.
        """
        self._ended = self._ended or error
        if self._pump is not None:
            self._pump.cancel()
        self._abandon(error)

    async def send(self, topic: Topic, event: AnyEvent, *, traceparent: str | None = None) -> Position:
        """Post an event, wait until the broker has acknowledged it, and return its position.

        Raises:
            BusError: The event was not acknowledged. The subclass tells why.
            MalformedEvent: The event is larger than readers accept.
        """
        return await (await self.post(topic, event, traceparent=traceparent))

    async def post(self, topic: Topic, event: AnyEvent, *, traceparent: str | None = None) -> asyncio.Future[Position]:
        """Accept an event, and return a future of its position. Wait while the buffer is full (``BUFFER_BYTES``).

        Raises:
            ProducerClosed: The producer is not running.
            MalformedEvent: The event is larger than readers accept.
            TypeError: The registry does not let the role write such an event on this topic.
        """
        record = self._record(topic, event, traceparent)
        if not self._buffer.try_acquire(record.size):
            await self._buffer.acquire(record.size)
            if self._ended is not None:
                self._buffer.release(record.size)  # for callers that still wait, and get the same error
                raise self._ended
        return self._accept(topic, event, record)

    def post_now(
        self, topic: Topic, event: AnyEvent, *, traceparent: str | None = None
    ) -> asyncio.Future[Position] | None:
        """Do what ``post`` does, with the same errors. But where ``post`` would have to wait, return None."""
        record = self._record(topic, event, traceparent)
        return self._accept(topic, event, record) if self._buffer.try_acquire(record.size) else None

    def _record(self, topic: Topic, event: AnyEvent, traceparent: str | None) -> OutgoingRecord:
        if type(event) not in self._writes.get(topic.name, _NOTHING):
            msg = f"{self._role} may not write {type(event).__name__} on {topic.name}: see schemas.registry"
            raise TypeError(msg)
        value, headers = encode(event, traceparent)
        if self._ended is not None:
            raise self._ended
        ack: asyncio.Future[Position] = self._loop.create_future()
        key = key_of(event)
        return OutgoingRecord(key, value, headers, now_ms(), ack, record_size(key, value))

    def _accept(self, topic: Topic, event: AnyEvent, record: OutgoingRecord) -> asyncio.Future[Position]:
        target = (topic.name, self._partition(topic, record.key))
        lingers = may_linger(event)
        if self._outbox.put(target, record, urgent=not lingers):
            self._wake.set()
        elif lingers and self._timer is None:
            delay_s = self._settings.linger_ms / 1_000
            self._timer = self._loop.call_later(delay_s, self._wake.set)
        return record.ack  # type: ignore[no-any-return] # the outbox does not know what it is

    def _partition(self, topic: Topic, key: bytes | None) -> int:
        count = topic.partitions(self._settings.partitions)
        return 0 if count == 1 or key is None else partition_for(key.decode(), count)

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._broken is not None:
                    await self._open_new_session(self._broken)
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
                for target, records in tuple(self._outbox.drain()):
                    await self._hand_over(target, records)
                UNACKED.set(self._outbox.count)
        except Exception as error:
            _log.critical("producer %s ended: %s", self._name, error)
            self._ended = error
            self._abandon(error)
            raise

    async def _hand_over(self, target: Partition, records: list[OutgoingRecord]) -> None:
        batch = self._client.create_batch()
        for record in records:
            batch.append(timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=record.headers)
        if batch.record_count() != len(records):
            raise AssertionError("a batch of the outbox must fit into aiokafka's")
        topic, partition = target
        try:
            sent = await self._client.send_batch(batch, topic, partition=partition)
        except _FOR_GOOD as error:  # the batch was not sent and has no sequence numbers, so the session goes on
            self._refuse(target, records, error)
            self._release(target, records)
            await asyncio.sleep(0)  # the callbacks of these events run before later events are sent
        except KafkaError as error:
            error.add_note(f"at {topic}[{partition}]")
            self._fail(error)
        else:
            sent.add_done_callback(partial(self._on_batch_done, self._session, target, records))

    def _on_batch_done(
        self, session: int, target: Partition, records: list[OutgoingRecord], sent: asyncio.Future[Any]
    ) -> None:
        error = None if sent.cancelled() else sent.exception()
        if session != self._session:
            return
        if sent.cancelled() or (error is not None and not isinstance(error, _FOR_GOOD)):
            self._fail(error or KafkaError("batch cancelled"))
            return
        if isinstance(error, _ONE_OF_BATCH) and len(records) > 1:
            self._outbox.split_batch(target)
            self._fail(error)
            return
        topic, partition = target
        if error is None:
            self._failures = 0
            base = sent.result().offset
            for index, record in enumerate(records):
                if not record.ack.done():
                    record.ack.set_result(Position(partition, base + index if base >= 0 else UNKNOWN_OFFSET))
            labelled(PRODUCED, topic).inc(len(records))
        else:
            self._refuse(target, records, error)
            self._fail(error)  # aiokafka has used the batch's sequence numbers, so the session is unusable
        self._release(target, records)

    def _refuse(self, target: Partition, records: list[OutgoingRecord], error: BaseException) -> None:
        topic, partition = target
        _log.error("%s[%d]: the broker refuses %d event(s) for good: %s", topic, partition, len(records), error)
        _reject(records, EventRejected(f"{topic}: {error}"))
        RECORDS_REFUSED.labels(topic).inc(len(records))

    def _release(self, target: Partition, records: list[OutgoingRecord]) -> None:
        if self._outbox.complete_batch(target):
            self._wake.set()
        size = 0
        for record in records:
            size += record.size
        self._buffer.release(size)
        UNACKED.set(self._outbox.count)
        if not self._outbox.count:
            self._empty.set()

    def _fail(self, error: BaseException) -> None:
        self._broken = error
        self._wake.set()

    async def _open_new_session(self, reason: BaseException) -> None:
        self._session += 1
        again = self._outbox.requeue_sent()
        RESENT.inc(again)
        _log.warning("producer %s: new session after %r; sending %d event(s) again", self._name, reason, again)
        await close_producer(self._client)
        await asyncio.sleep(backoff_s(self._failures))
        self._failures += 1
        self._client = await open_producer(self._settings, self._name)
        self._broken = None
        self._wake.clear()

    def _abandon(self, error: BaseException) -> None:
        self._session += 1
        for (topic, partition), records in self._outbox.take_all().items():
            _log.error("%s[%d]: %d accepted event(s) were not acknowledged: %s", topic, partition, len(records), error)
            UNSENT.labels(topic).inc(len(records))
            _reject(records, error if isinstance(error, BusError) else NotAcknowledged(str(error)))
            self._buffer.release(sum(record.size for record in records))
        self._empty.set()


def _reject(records: list[OutgoingRecord], error: BusError) -> None:
    for record in records:
        if not record.ack.done():
            record.ack.set_exception(error)
            record.ack.exception()  # mark it as retrieved, so that the event loop does not log it too
