"""Where requests are taken and answers taken up again: from a client's wish to an open stream."""

import asyncio
import hashlib
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from schemas.errors import MalformedEvent
from schemas.requests import Request
from schemas.topics import REQUESTS, REQUESTS_BATCH
from schemas.trace import is_traceparent, traceparent_for
from services.bus import BusError, Position, Producer, partition_for
from services.edge.ask import Ask
from services.edge.encodings import Client
from services.edge.errors import ApiError
from services.edge.hub import Hub
from services.edge.memory import Claim, Memory
from services.edge.partitions import Hold, Partitions
from services.edge.positions import OpId, parse_op_id
from services.edge.receipts import Receipts
from services.edge.scans import Scans
from services.edge.session import Session
from services.edge.settings import Settings
from services.edge.subscription import Connection, History, Subscription
from services.runtime.clock import now_ms
from services.runtime.metrics import EDGE_REQUESTS, OPS_SENT, RESUMES

POST_S: Final = 5.0
"""Longest time for a request to be accepted by the producer, whose buffer is full only while the broker is away."""

NOT_READY: Final = "This server is not ready: the log is not followed yet."


class Reception:
    """Takes requests."""

    def __init__(
        self, settings: Settings, *, instance: str, hub: Hub, partitions: Partitions, scans: Scans,
        producer: Producer, receipts: Receipts, memory: Memory,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._instance = instance
        self._source = f"edge/{instance}"
        self._hub = hub
        self._partitions = partitions
        self._scans = scans
        self._producer = producer
        self._receipts = receipts
        self._memory = memory
        self._numbers = itertools.count(1)

    async def ask(
        self, ask: Ask, client: Client, *, received_us: int, once: str | None = None, traceparent: str | None = None
    ) -> Subscription:
        """Put a new request on the log and open its stream.

        Args:
            ask: What is asked.
            client: Who asks.
            received_us: When it was received, in microseconds since the epoch: zero of its deadlines.
            once: An idempotency key; the second request with it gets the first one's answer.
            traceparent: The client's W3C trace, if any.

        Raises:
            ApiError: It is not taken.
        """
        self._check_capacity()
        wait_us = await self._memory.wait_us(client.tenant, received_us)
        if wait_us:
            seconds = -(-wait_us // 1_000_000)
            raise ApiError(
                429, f"Too many requests: try again in {seconds} s.", code="rate_limit_exceeded", retry_after_s=seconds
            )
        stream = self._new_stream(ask, client, received_us)
        with _ending(stream):
            if once is None:
                return await self._post(stream, traceparent)
            claim = Claim(stream.request.request_id, _hash_of(stream.request))
            known = await self._memory.claim(client.tenant, once, claim, received_us)
            if known is None:
                try:
                    return await self._post(stream, traceparent)
                except BaseException:
                    await self._memory.forget(client.tenant, once, received_us)
                    raise
        stream.end("gone")
        return await self._again(known, claim, client)

    async def resume(self, request_id: str, after: str | None, client: Client) -> Subscription:
        """Open the stream of a request that is on the log already.

        Args:
            request_id: Which.
            after: ``partition:offset:index`` of the last op that the client has; None for none.
            client: Who asks.

        Raises:
            ApiError: It is not known, not this tenant's, too old, or has no such position.
        """
        partition = self._partition(request_id)
        position = None if after is None else parse_op_id(after)
        if position is not None and position.partition != partition:
            raise ApiError(
                400, f"This request lives in partition {partition}: the position is not one of its ops.",
                code="unknown_position", param="after",
            )  # fmt: skip
        self._check_capacity()
        request = await self._scans.request(request_id, partition)
        if request is None or request.tenant != client.tenant or self._too_old(request):
            raise ApiError(404, "No such request, or it is too old.", code="request_not_found", param="request_id")
        stream = self._stream(request, await self._partitions.hold(partition), client, position, behind=True)
        with _ending(stream):
            return await self._caught_up(stream, position)

    def _new_stream(self, ask: Ask, client: Client, received_us: int) -> Subscription:
        placed = self._partitions.place(received_us // 1_000)
        if placed is None:
            raise ApiError(503, NOT_READY, code="not_ready", retry_after_s=1)
        request_id, hold = placed
        request = ask.request(request_id=request_id, tenant=client.tenant, at_us=received_us, source=self._source)
        return self._stream(request, hold, client, None, behind=False)

    async def _post(self, stream: Subscription, traceparent: str | None) -> Subscription:
        request = stream.request
        trace = traceparent if traceparent is not None and is_traceparent(traceparent) else None
        try:
            async with asyncio.timeout(POST_S):
                accepted = await self._producer.post(
                    REQUESTS_BATCH if request.lane == "batch" else REQUESTS,
                    request,
                    traceparent=trace or traceparent_for(request.request_id, secrets.randbits(64)),
                )
        except (MalformedEvent, BusError, TimeoutError) as error:
            raise _refusal_of(error) from None
        EDGE_REQUESTS.inc()
        accepted.add_done_callback(lambda done: _on_accepted(stream, done))
        if stream.reason is None:
            self._receipts.attached(stream)
        return stream

    async def _again(self, known: Claim, claim: Claim, client: Client) -> Subscription:
        """The same request once more: its first answer, from the beginning."""
        if known.body_hash != claim.body_hash:
            raise ApiError(
                422, "The Idempotency-Key was used with another body.", code="idempotency_key_reused",
                param="Idempotency-Key",
            )  # fmt: skip
        for wait_s in (0.05, 0.2, 0.5, 1.0):  # the first may be on its way to the log
            try:
                return await self.resume(known.request_id, None, client)
            except ApiError as error:
                if error.status != 404:
                    raise
            await asyncio.sleep(wait_s)
        raise ApiError(
            409, "The first request with this Idempotency-Key is not on the log: try again, or use another key.",
            code="idempotency_key_in_use", retry_after_s=1,
        )  # fmt: skip

    async def _caught_up(self, stream: Subscription, position: OpId | None) -> Subscription:
        self._receipts.attached(stream)
        partition = stream.session.partition
        end = await self._scans.end_offset(partition)
        if position is not None and position.offset >= end:
            raise ApiError(
                400, f"The position is beyond the end of the log, {partition}:{end}.", code="unknown_position",
                param="after",
            )  # fmt: skip
        history = await self._scans.history(stream.session.request_id, partition, end)
        stream.history = History(stream.session.resume(history, position), end)
        RESUMES.inc()
        return stream

    def _stream(
        self, request: Request, hold: Hold, client: Client, position: OpId | None, *, behind: bool
    ) -> Subscription:
        session = Session(request.request_id, hold.partition)
        connection = Connection(
            name=f"{self._instance}-{next(self._numbers)}",
            transport=client.encoding.transport,
            until_closed=client.encoding.until_closed,
            resumed_from=position,
        )

        def on_end(stream: Subscription) -> None:
            self._hub.drop(stream)
            hold.release()
            OPS_SENT.inc(stream.session.tally.ops)
            self._receipts.detached(stream)

        stream = Subscription(
            request=request, session=session, encoder=client.encoding.encoder(session, request.model),
            connection=connection, behind=behind, on_end=on_end,
        )  # fmt: skip
        self._hub.add(stream)
        return stream

    def _partition(self, request_id: str) -> int:
        return partition_for(request_id, self._settings.bus.partitions)

    def _check_capacity(self) -> None:
        if len(self._hub) >= self._settings.max_streams:
            raise ApiError(503, "Too many open streams: try again.", code="too_many_streams", retry_after_s=1)

    def _too_old(self, request: Request) -> bool:
        return now_ms() > request.at // 1_000 + request.deadlines.total_ms + self._settings.resume_ms


@contextmanager
def _ending(stream: Subscription) -> Iterator[None]:
    """End a stream that cannot be opened."""
    try:
        yield
    except ApiError as error:
        stream.end("error", error)
        raise
    except BaseException:
        stream.end("gone")
        raise


def _hash_of(request: Request) -> str:
    """What makes two bodies the same; the id and the time do not."""
    asked = (request.model, request.messages, request.sampling, request.lane, request.delivery, request.deadlines)
    return hashlib.sha256(repr((asked, request.fallback, request.egress)).encode()).hexdigest()


def _refusal_of(error: Exception) -> ApiError:
    """Why the log does not take a request."""
    if isinstance(error, MalformedEvent):
        return ApiError(413, "The request is larger than the log takes: 1,000,000 bytes.", code="request_too_large")
    return ApiError(503, "The log takes no requests now.", code="log_unavailable", retry_after_s=2)


def _on_accepted(stream: Subscription, accepted: asyncio.Future[Position]) -> None:
    """The log took the request, or never will."""
    if not accepted.cancelled() and accepted.exception() is not None:
        stream.end("error", ApiError(503, "The log did not take the request.", code="log_unavailable", retry_after_s=2))
