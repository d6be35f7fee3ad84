"""Send traces to an OpenTelemetry collector from a background thread."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.runtime.metrics import TRACER_SPANS, TRACER_WAITING
from services.tracer.encoder_cache import keep_encoded_texts
from services.tracer.spans import Span, Trace

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_log = logger("tracer")

BATCH_SPANS: Final = 4_096
"""Approximate number of spans in one request to the collector, about a megabyte."""

GATHER_S: Final = 5.0
"""Maximum time that spans wait for further spans to fill a batch. A batch is sent as one request, because a request to
the collector costs more than the spans in it."""

LAST_S: Final = 3.0
"""Maximum time to send the waiting spans when the process is asked to stop."""


class SpanExporter:
    """A queue of traces with a limited number of spans, and the task that sends them to a collector.

    Args:
        endpoint: The collector's base address; ``/v1/traces`` is appended.
        limit: Maximum number of queued spans.

    Raises:
        UserError: The extra ``otel`` is not installed.
    """

    def __init__(self, endpoint: str, limit: int) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import SpanExportResult
        except ModuleNotFoundError:
            raise UserError("traces need OpenTelemetry: pip install 'railbus[otel]'") from None
        keep_encoded_texts()
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # this module logs outages itself
        self._where = urlsplit(endpoint).netloc.rpartition("@")[2]  # without user name and password
        self._otlp: Any = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._success = SpanExportResult.SUCCESS
        self._limit = limit
        self._batch = min(BATCH_SPANS, limit // 2)  # so that no span is dropped while a batch fills
        self._queue: deque[Trace] = deque()
        self._waiting = 0
        self._filled = asyncio.Event()
        self._enough = asyncio.Event()
        self._convert = Converter()
        self._away = False

    def put(self, trace: Trace) -> None:
        """Queue a trace. If the queue is full, drop the trace."""
        size = len(trace.spans)
        if self._waiting + size > self._limit:
            TRACER_SPANS.labels("dropped").inc(size)
            return
        self._queue.append(trace)
        self._waiting += size
        TRACER_WAITING.set(self._waiting)
        self._filled.set()
        if self._waiting >= self._batch:
            self._enough.set()

    async def run(self) -> None:
        """Send traces until cancelled. Then send the queued traces, for at most ``LAST_S``."""
        try:
            while True:
                await self._filled.wait()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._enough.wait(), GATHER_S)
                await self._send(self._next_batch())
        finally:
            try:
                async with asyncio.timeout(LAST_S):
                    while self._queue:
                        await self._send(self._next_batch())
            except TimeoutError:
                TRACER_SPANS.labels("dropped").inc(self._waiting)
            self._otlp.shutdown()

    def _next_batch(self) -> list[Trace]:
        batch: list[Trace] = []
        size = 0
        while self._queue and size < self._batch:
            batch.append(self._queue.popleft())
            size += len(batch[-1].spans)
        self._waiting -= size
        TRACER_WAITING.set(self._waiting)
        if not self._queue:
            self._filled.clear()
        if self._waiting < self._batch:
            self._enough.clear()
        return batch

    async def _send(self, traces: Sequence[Trace]) -> None:
        spans = [span for trace in traces for span in self._convert.trace(trace)]
        result = await asyncio.to_thread(self._otlp.export, spans)
        sent = result is self._success
        TRACER_SPANS.labels("exported" if sent else "failed").inc(len(spans))
        if not sent and not self._away:
            _log.warning(
                "the collector at %s takes no spans: they are dropped until it does (the usual port for HTTP is 4318)",
                self._where,
            )
        elif sent and self._away:
            _log.info("the collector at %s takes spans again", self._where)
        self._away = not sent


class Converter:
    def __init__(self) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        # The encoder hashes the resource of every span. The usual hash is slow, because it is computed from JSON.
        class HashedResource(Resource):
            def __hash__(self) -> int:
                return id(self)

            def __eq__(self, other: object) -> bool:
                return self is other

        # Fields are plain attributes here. In the base class they are computed at each access.
        class ExportedSpan(ReadableSpan):
            attributes: Any = None
            context: Any = None
            end_time: Any = None
            events: Any = None
            instrumentation_scope: Any = None
            kind: Any = None
            name: Any = None
            parent: Any = None
            resource: Any = None
            start_time: Any = None
            status: Any = None
            links: Any = ()
            dropped_attributes: Any = 0
            dropped_events: Any = 0
            dropped_links: Any = 0

            def __init__(self, **values: Any) -> None:
                self.__dict__ = values

            def get_span_context(self) -> Any:
                return self.context

        self._resource, self._event, self._span, self._context = HashedResource, Event, ExportedSpan, SpanContext
        self._kinds = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
        self._status, self._error = Status, StatusCode.ERROR
        self._sampled = TraceFlags(TraceFlags.SAMPLED)
        self._scope = InstrumentationScope("railbus")
        self._resources: dict[tuple[str, str], Any] = {}

    def trace(self, trace: Trace) -> "Iterator[ReadableSpan]":
        contexts: dict[int, Any] = {}
        for span in trace.spans:
            for span_id in (span.span_id, span.parent_id):
                if span_id is not None and span_id not in contexts:
                    contexts[span_id] = self._context(
                        trace.trace_id, span_id, is_remote=False, trace_flags=self._sampled
                    )
            yield self._exported(span, contexts)

    def _exported(self, span: Span, contexts: Mapping[int, Any]) -> "ReadableSpan":
        attributes = span.attributes if span.error is None else {"error.type": span.error, **span.attributes}
        return self._span(
            name=span.name,
            context=contexts[span.span_id],
            parent=None if span.parent_id is None else contexts[span.parent_id],
            resource=self._resource_of(span),
            attributes=attributes,
            events=[self._event(each.name, each.attributes, each.at_ns) for each in span.events],
            kind=self._kinds[span.kind],
            status=None if span.error is None else self._status(self._error, span.error),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _resource_of(self, span: Span) -> Any:
        key = (span.service, span.source)
        if key not in self._resources:
            if len(self._resources) > 1_000:
                self._resources.clear()  # bounds the cache, because processes come and go
            named = {"service.name": f"railbus-{span.service}", "service.namespace": "railbus"}
            self._resources[key] = self._resource(named | ({"service.instance.id": span.source} if span.source else {}))
        return self._resources[key]
