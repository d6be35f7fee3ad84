"""Pass each event of the stream log to the open streams of its request."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from schemas.registry import read_kinds
from schemas.stream import Started, StreamEvent
from schemas.topics import STREAMS
from services.bus import LogTime, Received, UnreadableRecord
from services.edge.delivery.subscription import Subscription
from services.edge.errors import ApiError
from services.edge.log.positions import LoggedEvent
from services.edge.log.request_index import RequestIndex
from services.edge.log.unreadable import newer_version, takes_text_back
from services.runtime.clock import steady_us
from services.runtime.logging import logger
from services.runtime.metrics import STREAMS_ACTIVE, TENANT_STREAMS_MOST, TENANTS_ACTIVE, labelled

_log = logger("edge")

TICK_S: Final = 0.5
"""Seconds between deadline checks. A stream ends at most this long after its deadline."""

MAX_MODELS: Final = 1_000
"""Maximum number of pairs of tenant and model that are kept for ``/v1/models``."""

_KINDS: Final = read_kinds("edge", STREAMS)


class Hub:
    """All open streams of this process."""

    def __init__(self) -> None:
        self.index = RequestIndex()
        self.log_time = LogTime()
        self._models: dict[tuple[str, str], None] = {}  # keys are (tenant, model), newest last
        self._streams: dict[bytes, list[Subscription]] = {}
        self._count = 0
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        return iter([stream for streams in self._streams.values() for stream in streams])

    def open_streams(self, tenant: str) -> int:
        return self._by_tenant[tenant]

    def add(self, stream: Subscription) -> None:
        self._streams.setdefault(stream.session.request_id.encode(), []).append(stream)
        self._count += 1
        self._by_tenant[stream.request.tenant] += 1
        labelled(STREAMS_ACTIVE, stream.connection.transport).inc()

    def remove(self, stream: Subscription) -> None:
        key = stream.session.request_id.encode()
        left = [other for other in self._streams.get(key, ()) if other is not stream]
        if left:
            self._streams[key] = left
        else:
            self._streams.pop(key, None)
        self._count -= 1
        self._by_tenant[stream.request.tenant] -= 1
        if not self._by_tenant[stream.request.tenant]:
            del self._by_tenant[stream.request.tenant]
        labelled(STREAMS_ACTIVE, stream.connection.transport).dec()

    def wants(self, kind: str, key: bytes | None) -> bool:
        """Return whether the edge needs a record with this kind and this key, which is a request id."""
        return (key in self._streams or key in self.index) and kind in _KINDS

    def handle(self, records: Sequence[Received | UnreadableRecord]) -> None:
        """Pass records to the open streams of their requests."""
        at_us = steady_us()
        touched: dict[Subscription, None] = {}
        # First these: text of the same batch must not be sent, and must not count as sent.
        for record in records:
            if type(record) is UnreadableRecord and takes_text_back(record):
                self._end_unreadable(record)
        for record in records:
            if type(record) is UnreadableRecord:
                if record.key is not None and takes_text_back(record):
                    self.index.note_event(record.key, record.offset)
                continue
            event = record.event
            if not isinstance(event, StreamEvent):
                continue
            if type(event) is Started:
                self._remember(event.tenant, event.model)
            logged = LoggedEvent(record.offset, event, record.timestamp_ms)
            key = event.request_id.encode()
            self.index.note_event(key, record.offset)
            for stream in self._streams.get(key, ()):
                try:
                    stream.push(logged, at_us)
                except Exception:  # noqa: BLE001 - one broken stream must not break the others
                    self._end_broken(stream)
                touched[stream] = None
        for stream in touched:
            stream.flush()
        self.log_time.note(records[-1].timestamp_ms, at_us // 1_000)

    def tick(self, at_us: int) -> None:
        TENANTS_ACTIVE.set(len(self._by_tenant))
        TENANT_STREAMS_MOST.set(max(self._by_tenant.values(), default=0))
        for stream in self:
            if stream.expired(at_us):
                text = "The request was not closed by its deadline: no router answers."
                stream.end("error", ApiError(504, text, code="expired"))

    async def stop(self, drain_ms: int) -> None:
        """Wait up to ``drain_ms`` for streams to end.

        End the remaining streams with an error that asks their clients to resume.
        """
        for _ in range(drain_ms // 10):
            if not self._count:
                return
            await asyncio.sleep(0.01)
        for stream in self:
            text = "This server is stopping: resume at the last id."
            stream.end("shutdown", ApiError(503, text, code="server_stopping", retry_after_s=1))

    def _end_unreadable(self, record: UnreadableRecord) -> None:
        for stream in tuple(self._streams.get(record.key or b"", ())):
            _log.error("request %s: %s; upgrade this edge", stream.session.request_id, record.error)
            stream.end("error", newer_version(), withhold=True)

    def _end_broken(self, stream: Subscription) -> None:
        _log.exception("request %s: cannot follow its log", stream.session.request_id)
        stream.end("error", ApiError(500, "The server failed to deliver the answer.", code="internal"))

    def models(self, tenant: str) -> list[str]:
        return [model for owner, model in reversed(self._models) if owner == tenant]

    def _remember(self, tenant: str, model: str) -> None:
        self._models.pop((tenant, model), None)
        self._models[tenant, model] = None
        if len(self._models) > MAX_MODELS:
            del self._models[next(iter(self._models))]
