"""All open streams of this process: what the log says of their requests goes to them, and to nobody else."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from schemas.registry import read_kinds
from schemas.stream import Started, StreamEvent
from schemas.topics import STREAMS
from services.bus import Received, Unread
from services.edge.errors import ApiError
from services.edge.session import Logged
from services.edge.subscription import Subscription
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.runtime.metrics import STREAMS_ACTIVE

_log = logger("edge")

TICK_S: Final = 0.5
"""How often deadlines are looked at: a stream that nobody closed ends at most so much later."""

MAX_MODELS: Final = 100
"""Names of models kept for ``/v1/models``."""

_KINDS: Final = read_kinds("edge", STREAMS)


class Hub:
    """Who listens to what.

    Attributes:
        models: Models that answered lately, newest last.
    """

    def __init__(self) -> None:
        self.models: dict[str, None] = {}
        self._listeners: dict[bytes, list[Subscription]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Subscription]:
        return iter([one for each in self._listeners.values() for one in each])

    def add(self, subscription: Subscription) -> None:
        """Let it hear what is said of its request from now on."""
        self._listeners.setdefault(subscription.session.request_id.encode(), []).append(subscription)
        self._count += 1
        STREAMS_ACTIVE.labels(subscription.connection.transport).inc()

    def drop(self, subscription: Subscription) -> None:
        """It heard enough."""
        key = subscription.session.request_id.encode()
        left = [one for one in self._listeners.get(key, ()) if one is not subscription]
        if left:
            self._listeners[key] = left
        else:
            self._listeners.pop(key, None)
        self._count -= 1
        STREAMS_ACTIVE.labels(subscription.connection.transport).dec()

    def wants(self, kind: str, key: bytes | None) -> bool:
        """Whether a record concerns anybody here; others are not decoded."""
        return key in self._listeners and kind in _KINDS

    def handle(self, records: Sequence[Received | Unread]) -> None:
        """Hand a batch out: each stream that got something writes once."""
        at_us = now_us()
        touched: dict[Subscription, None] = {}
        for record in records:
            if isinstance(record, Unread) or not isinstance(record.event, StreamEvent):
                continue
            if type(record.event) is Started:
                self._remember(record.event.model)
            logged = Logged(record.offset, record.event)
            for one in self._listeners.get(record.event.request_id.encode(), ()):
                self._push(one, logged, at_us)
                touched[one] = None
        for one in touched:
            one.flush()

    def tick(self, at_us: int) -> None:
        """End what nobody closed."""
        for one in self:
            if one.expired(at_us):
                text = "The request was not closed by its deadline: no router answers."
                one.end("error", ApiError(504, text, code="expired"))

    async def stop(self, drain_ms: int) -> None:
        """Let streams end for a while, then end them; their clients can resume elsewhere."""
        for _ in range(drain_ms // 10):
            if not self._count:
                return
            await asyncio.sleep(0.01)
        for one in self:
            text = "This server is stopping: resume at the last id."
            one.end("shutdown", ApiError(503, text, code="server_stopping", retry_after_s=1))

    def _push(self, one: Subscription, logged: Logged, at_us: int) -> None:
        try:
            one.push(logged, at_us)
        except Exception:  # noqa: BLE001 - one broken stream must not take the others with it
            _log.exception("request %s: cannot follow its log", one.session.request_id)
            one.end("error", ApiError(500, "The answer cannot be shown: a fault of this server.", code="internal"))

    def _remember(self, model: str) -> None:
        self.models.pop(model, None)
        self.models[model] = None
        if len(self.models) > MAX_MODELS:
            del self.models[next(iter(self.models))]
