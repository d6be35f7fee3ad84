"""Accept new requests, and resume the delivery of earlier answers."""

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from schemas.errors import MalformedEvent
from schemas.ids import time_ms
from schemas.requests import LONGEST_TOTAL_MS, Request
from schemas.topics import REQUESTS, REQUESTS_BATCH, Topic
from schemas.trace import is_traceparent, traceparent_for
from services.bus import BusError, EventRejected, Position, Producer, partition_for
from services.edge.delivery.hub import Hub
from services.edge.delivery.receipts import ReceiptWriter
from services.edge.delivery.session import DeliverySession
from services.edge.delivery.subscription import EXPIRY_MARGIN_US, ClientConnection, History, OpenRequest, Subscription
from services.edge.encoders.encoding import ClientContext
from services.edge.errors import ApiError
from services.edge.log.lookup import LATE_MS, LOOKUP_TIMEOUT_S, OUTAGE_MS, LogLookup, in_time, is_too_old
from services.edge.log.partition_follower import PartitionFollower, PartitionHold
from services.edge.log.positions import OpId, parse_op_id
from services.edge.requests.batch_room import BatchRoom, StreamPlace
from services.edge.requests.parse import ArrivalTimes, ParsedRequest, parse_chat_request
from services.edge.requests.rate_limit import tokens_of, used_tokens
from services.edge.requests.shared_limits import IDEMPOTENCY_TTL_S, IdempotencyRecord, Quota, SharedLimits
from services.edge.settings import Settings
from services.runtime.classes.class_reloader import ClassReloader
from services.runtime.clock import now_us, steady_us
from services.runtime.metrics import EDGE_REQUESTS, OPS_SENT, QUOTA_REFUSED, RESUMES

POST_S: Final = 5.0
"""Maximum wait for room in the producer's buffer, in seconds. It is full only while the broker is unreachable."""

NOT_ACKNOWLEDGED: Final = (
    "The log did not acknowledge the request in time. It may still be answered: to ask again without asking twice, "
    "send the same Idempotency-Key."
)

IDEMPOTENCY_TTL_MS: Final = IDEMPOTENCY_TTL_S * 1_000

NOT_READY: Final = "The server is not ready: it does not follow the log yet."


class RequestService:
    def __init__(
        self, settings: Settings, *, instance: str, hub: Hub, partitions: PartitionFollower, lookup: LogLookup,
        producer: Producer, receipts: ReceiptWriter, shared_limits: SharedLimits,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._classes = ClassReloader(settings.policy, "edge")
        self._instance = instance
        self._source = f"edge/{instance}"
        self._hub = hub
        self._partitions = partitions
        self._lookup = lookup
        self._producer = producer
        self._receipts = receipts
        self._shared_limits = shared_limits
        self._batch_room = BatchRoom(settings.max_streams, lambda: len(hub))
        self._numbers = itertools.count(1)
        self._giving_back: set[asyncio.Task[None]] = set()

    async def watch_classes(self) -> None:
        await self._classes.watch()

    def parse(self, body: dict[str, Any], tenant: str, class_header: str | None = None) -> ParsedRequest:
        """Validate the body of a chat request.

        ``class_header`` is the value of the header ``X-Railbus-Class``, if any.

        Raises:
            ApiError: 400, if a field is not valid; 403, if the client may not use the class.
        """
        return parse_chat_request(body, self._classes.current, tenant=tenant, class_header=class_header)

    async def accept(
        self, parsed: ParsedRequest, client: ClientContext, *, arrival: ArrivalTimes, on_posted: Callable[[], None],
        idempotency_key: str | None = None, traceparent: str | None = None,
    ) -> Subscription:  # fmt: skip
        """Put a new request on the log. Return its stream when the broker has acknowledged the request.

        ``on_posted`` is called earlier, when the producer has taken the request.

        Raises:
            ApiError: The request is refused, or the broker did not acknowledge it.
        """
        if parsed.lane != "batch":
            return await self._accept(parsed, client, arrival, on_posted, idempotency_key, traceparent, None)
        place = await self._batch_room.take()
        arrival = ArrivalTimes.at(now_us()) if place.waited else arrival
        try:
            return await self._accept(parsed, client, arrival, on_posted, idempotency_key, traceparent, place)
        except BaseException:
            place.release()
            raise

    async def _accept(
        self, parsed: ParsedRequest, client: ClientContext, arrival: ArrivalTimes, on_posted: Callable[[], None],
        idempotency_key: str | None, traceparent: str | None, place: StreamPlace | None,
    ) -> Subscription:  # fmt: skip
        self._check_capacity(client.tenant)
        await self._charge("requests", client.tenant)
        charged = min(tokens_of(parsed.template), self._settings.tokens_burst)
        await self._charge("tokens", client.tenant, charged)
        taken = False

        def on_taken() -> None:
            nonlocal taken
            taken = True
            on_posted()

        try:
            request, stream = self._new_stream(parsed, client, arrival, charged, place)
            with _end_on_failure(stream):
                if idempotency_key is None:
                    return await self._post(request, stream, traceparent, on_taken)
                record = IdempotencyRecord(request.request_id, _body_hash(parsed))
                claim = self._shared_limits.claim(client.tenant, idempotency_key, record, steady_us())
                claiming = asyncio.ensure_future(claim)
                try:
                    known = await asyncio.shield(claiming)  # if the client leaves now, Redis may have the key or not
                    if known is None:
                        return await self._post(request, stream, traceparent, on_taken)
                except _NotTaken:
                    await self._shared_limits.forget(client.tenant, idempotency_key, steady_us())
                    raise
                except asyncio.CancelledError:
                    if not taken:
                        self._soon(self._forget_claim(claiming, client.tenant, idempotency_key))
                    raise
        except _NotTaken:
            self._give_back(client.tenant, charged)
            raise
        except asyncio.CancelledError:
            if not taken:
                self._give_back(client.tenant, charged)
            raise
        stream.end("gone")
        self._give_back(client.tenant, charged)
        return await self._again(known, record, client, idempotency_key)

    async def resume(self, request_id: str, after: str | None, client: ClientContext) -> Subscription:
        """Open a stream for a request that is on the log already.

        The stream begins after the op at the position ``after``, or with the first op if ``after`` is None. An op is
        an instruction to the client, such as to append text.

        Raises:
            ApiError: 400, if ``after`` is not the position of an op of this request. 404, if the request is unknown,
                belongs to another tenant or is too old. 429, if the tenant resumes too often, resumes too many streams
                at once, or has too many open streams. 503, if all tenants together resume too many streams at once or
                have too many open streams. The status is also 503 if the log cannot be read now.
        """
        await self._charge("resumes", client.tenant)
        return await self._reopen(request_id, after, client, self._settings.resume_ms)

    async def _charge(self, quota: Quota, tenant: str, units: int = 1) -> None:
        # By the steady clock: after the wall clock is set back, a tenant would wait until it is as late as before.
        wait_us = await self._shared_limits.wait_us(quota, tenant, steady_us(), units)
        if wait_us:
            QUOTA_REFUSED.labels(quota).inc()
            seconds = -(-wait_us // 1_000_000)
            raise ApiError(
                429, f"Too many {quota}: try again in {seconds} s.", code="rate_limit_exceeded", retry_after_s=seconds
            )

    def _give_back(self, tenant: str, tokens: int) -> None:
        if tokens <= 0 or not self._settings.tokens_per_minute:
            return
        self._soon(self._shared_limits.give_back("tokens", tenant, steady_us(), tokens))

    async def _forget_claim(self, claiming: asyncio.Future[IdempotencyRecord | None], tenant: str, key: str) -> None:
        if await claiming is None:
            await self._shared_limits.forget(tenant, key, steady_us())

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._giving_back.add(task)  # keeps a reference; few, because each ends within the time-out of Redis
        task.add_done_callback(self._giving_back.discard)

    async def _reopen(
        self, request_id: str, after: str | None, client: ClientContext, readable_ms: int, *, late_ms: int = LATE_MS
    ) -> Subscription:
        partition = self._partition(request_id)
        position = None if after is None else parse_op_id(after)
        if position is not None and position.partition != partition:
            raise ApiError(
                400, f"This request is in partition {partition}: the position is not one of its ops.",
                code="unknown_position", param="after",
            )  # fmt: skip
        self._check_capacity(client.tenant)
        found = await self._lookup.find_request(request_id, partition, client.tenant, late_ms=late_ms)
        log_ms = self._log_ms()
        if found is None or found.event.tenant != client.tenant or is_too_old(found, readable_ms, log_ms):
            raise ApiError(404, "No such request, or it is too old.", code="request_not_found", param="request_id")
        request = found.event
        with in_time():
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                hold = await self._partitions.hold(partition)
        try:
            self._check_capacity(client.tenant)  # again, because other streams may be open by now
        except ApiError:
            hold.release()
            raise
        stream = self._stream(request, hold, client, position, catching_up=True)
        with _end_on_failure(stream):
            return await self._caught_up(stream, position)

    def _new_stream(
        self, parsed: ParsedRequest, client: ClientContext, arrival: ArrivalTimes, charged: int,
        place: StreamPlace | None,
    ) -> tuple[Request, Subscription]:  # fmt: skip
        self._check_capacity(client.tenant)  # again, because other streams may have been opened since the first check
        reserved = self._partitions.reserve_request_id(self._log_ms())  # a look-up compares it with append times
        if reserved is None:
            raise _NotTaken(ApiError(503, NOT_READY, code="not_ready", retry_after_s=1))
        request_id, hold = reserved
        request = parsed.request(
            request_id=request_id, tenant=client.tenant, at_us=arrival.at_us, source=self._source,
            waited_us=now_us() - arrival.read_us,
        )  # fmt: skip
        self._hub.index.follow(request_id.encode(), hold.partition, whole=True)
        unread_us = arrival.read_us - arrival.at_us
        return request, self._stream(
            request, hold, client, None, catching_up=False, charged=charged, place=place, unread_us=unread_us
        )

    async def _post(
        self, request: Request, stream: Subscription, traceparent: str | None, on_posted: Callable[[], None]
    ) -> Subscription:
        trace = traceparent if traceparent is not None and is_traceparent(traceparent) else None
        trace = trace or traceparent_for(request.request_id, secrets.randbits(64))
        topic = _topic_of(request)
        try:
            acknowledged = self._producer.post_now(topic, request, traceparent=trace)
            if acknowledged is None:
                async with asyncio.timeout(POST_S):
                    acknowledged = await self._producer.post(topic, request, traceparent=trace)
        except (MalformedEvent, BusError, TimeoutError) as error:
            raise _NotTaken(_post_error(error)) from None
        EDGE_REQUESTS.inc()
        on_posted()
        self._receipts.record_attached(stream)
        acknowledged.add_done_callback(lambda done: self._on_answered(stream, topic.name, done))
        await _wait_until_on_log(stream, acknowledged)
        return stream

    def _on_answered(self, stream: Subscription, topic: str, acknowledged: asyncio.Future[Position]) -> None:
        if not acknowledged.cancelled() and acknowledged.exception() is None:
            self._hub.index.note_request(stream.request.request_id.encode(), topic, acknowledged.result().offset)
        stream.on_log.set()

    async def _again(
        self, known: IdempotencyRecord, record: IdempotencyRecord, client: ClientContext, key: str
    ) -> Subscription:
        # The answer can be read for as long as the key is kept, even if ``resume_ms`` has passed.
        readable_ms = max(IDEMPOTENCY_TTL_MS, self._settings.resume_ms)
        if known.body_hash != record.body_hash:
            raise ApiError(
                422, "The Idempotency-Key was used with another body.", code="idempotency_key_reused",
                param="Idempotency-Key",
            )  # fmt: skip
        for wait_s in (0.05, 0.2, 0.5, 1.0):  # perhaps the first request is not on the log yet
            try:
                return await self._reopen(known.request_id, None, client, readable_ms)
            except ApiError as error:
                if error.status != 404:
                    raise
            await asyncio.sleep(wait_s)
        if self._log_ms() - time_ms(known.request_id) > LATE_MS:
            try:  # it may have waited at its edge for a broker that was away
                return await self._reopen(known.request_id, None, client, readable_ms, late_ms=OUTAGE_MS)
            except ApiError as error:
                if error.status != 404:
                    raise
            await self._shared_limits.forget(client.tenant, key, steady_us())  # it never reached the log
        raise ApiError(
            409, "The first request with this Idempotency-Key is not on the log: try again, or use another key.",
            code="idempotency_key_in_use", retry_after_s=1,
        )  # fmt: skip

    def _log_ms(self) -> int:
        return self._hub.log_time.now_ms(steady_us() // 1_000)

    async def _caught_up(self, stream: Subscription, position: OpId | None) -> Subscription:
        self._receipts.record_attached(stream)
        session, index, key = stream.session, self._hub.index, stream.session.request_id.encode()
        span = index.history_span(key, None if position is None else position.offset)
        if span is not None:
            begin, end = span  # the stream keeps the events that arrive after this span until the history is sent
        else:
            index.follow(key, session.partition, whole=False)  # before ``end_offset``, to miss no event
            begin, end = None, await self._lookup.end_offset(session.partition)
            if position is not None and position.offset >= end:
                raise ApiError(
                    400, f"The position is beyond the end of the log, {session.partition}:{end}.",
                    code="unknown_position", param="after",
                )  # fmt: skip
        history = await self._lookup.history(session.request_id, session.partition, end, stream.request.tenant, begin)
        index.add_history(key, [logged.offset for logged in history])
        stream.history = History(session.resume(history, position), end)
        RESUMES.inc()
        return stream

    def _stream(
        self, request: Request, hold: PartitionHold, client: ClientContext, position: OpId | None, *,
        catching_up: bool, charged: int = 0, place: StreamPlace | None = None, unread_us: int = 0,
    ) -> Subscription:  # fmt: skip
        session = DeliverySession(request.request_id, hold.partition, self._settings.governance)
        tenant = request.tenant
        connection = ClientConnection(
            name=f"{self._instance}-{next(self._numbers)}",
            transport=client.encoding.transport,
            until_closed=client.encoding.until_closed,
            resumed_from=position,
        )

        def on_end(stream: Subscription) -> None:
            self._hub.remove(stream)
            hold.release()
            (self._batch_room.admit if place is None else place.release)()  # the end of any stream makes room
            OPS_SENT.inc(stream.session.stats.ops)
            self._give_back(tenant, charged - used_tokens(session, charged))

        stream = Subscription(
            request=OpenRequest.of(request, unread_us), session=session, connection=connection, catching_up=catching_up,
            encoder=client.encoding.encoder(session, request.model), on_end=on_end,
            on_detached=self._receipts.record_detached,
        )  # fmt: skip
        self._hub.add(stream)
        if place is not None:
            place.open()
        return stream

    def _partition(self, request_id: str) -> int:
        return partition_for(request_id, self._settings.bus.partitions)

    def _check_capacity(self, tenant: str) -> None:
        most = self._settings.max_tenant_streams
        if most and self._hub.open_streams(tenant) >= most:
            QUOTA_REFUSED.labels("streams").inc()
            raise _NotTaken(
                ApiError(429, "You have too many open streams: try again.", code="too_many_streams", retry_after_s=1)
            )
        if len(self._hub) >= self._settings.max_streams:
            raise _NotTaken(
                ApiError(503, "Too many open streams: try again.", code="too_many_streams", retry_after_s=1)
            )


@contextmanager
def _end_on_failure(stream: Subscription) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        stream.end("error", error)
        raise
    except BaseException:
        stream.end("gone")
        raise


def _body_hash(parsed: ParsedRequest) -> str:
    request = parsed.template  # not its class and deadlines, because the policy may have changed meanwhile
    sent = (request.model, request.messages, request.sampling, request.delivery, request.fallback, request.egress)
    return hashlib.sha256(repr((sent, parsed.asked)).encode()).hexdigest()


def _post_error(error: Exception) -> ApiError:
    if isinstance(error, MalformedEvent):
        return ApiError(413, "The request exceeds the log's limit of 1,000,000 bytes.", code="request_too_large")
    return ApiError(503, "The log accepts no requests now: try again.", code="log_unavailable", retry_after_s=2)


def _topic_of(request: Request) -> Topic:
    return REQUESTS_BATCH if request.lane == "batch" else REQUESTS


# The request is not on the log and never will be. Its charge and its idempotency key are undone.
class _NotTaken(ApiError):
    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, error.message, code=error.code, retry_after_s=error.retry_after_s)


async def _wait_until_on_log(stream: Subscription, acknowledged: asyncio.Future[Position]) -> None:
    longest_ms = min(stream.request.total_ms, LONGEST_TOTAL_MS)  # longer deadlines are for engines, not for the log
    ends_us = stream.opened_us + longest_ms * 1_000 + EXPIRY_MARGIN_US
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + (ends_us - steady_us()) / 1e6
    late = False

    def end_wait() -> None:
        nonlocal late  # the clock does not say it: uvloop's timers fire up to half a millisecond early
        late = True
        stream.on_log.set()

    timer = loop.call_at(ends_s, end_wait)
    try:
        await stream.on_log.wait()  # an event about the request also proves that it is on the log
    finally:
        timer.cancel()
    if not acknowledged.done() and late:
        raise ApiError(503, NOT_ACKNOWLEDGED, code="log_unavailable", retry_after_s=2)
    error = acknowledged.exception() if acknowledged.done() else None
    if isinstance(error, EventRejected):
        raise _NotTaken(_post_error(error)) from None
    stopped = not acknowledged.done() and stream.reason == "shutdown"
    if error is not None or stopped:
        raise ApiError(503, NOT_ACKNOWLEDGED, code="log_unavailable", retry_after_s=2) from None
