"""One request's log as a tree of spans. Pure.

The root is the request, from its receipt to the last byte sent. Its children are

* the parts of its time (``services.stream.latency``), one after the other: they add up to the root;
* what ran meanwhile: the verdict with its rails, each attempt, the check of the answer.

All times are the log's, but the first and the last, which are the edge's. No span has a prompt, an answer, or a part of
one. Ids are derived from the request's id, so a trace that is exported twice is the same trace.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal

from schemas.requests import Request
from schemas.side_events import Detached
from schemas.stream import (
    Chunk,
    Cleared,
    Closed,
    Cutover,
    Failed,
    Finished,
    Recall,
    RunEvent,
    Started,
    StreamEvent,
    Verdict,
)
from services.stream import Screen
from services.stream.latency import Latency, LogEvent, latency
from services.stream.stages import Part
from services.tracer.attributes import (
    Attributes,
    attempt_attributes,
    end_attributes,
    failed_attributes,
    finished_attributes,
    request_attributes,
)

SpanKind = Literal["server", "client", "internal"]

WORKS: Final[Mapping[Part, str]] = {
    "post": "edge",
    "lost attempts": "router",
    "worker": "generator",
    "engine queue": "generator",
    "prefill": "generator",
    "rails": "rails",
    "hold-back": "safety",
    "decode": "generator",
    "final hold-back": "safety",
    "close": "router",
    "delivery": "edge",
}
"""The service that the answer waited for in each part."""

_FAILED: Final = frozenset({"failed", "expired", "rejected"})
_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at one time within a span."""

    name: str
    at_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span, as OpenTelemetry defines it; times are nanoseconds since the epoch.

    Attributes:
        parent_id: None for a span without parent.
        service: The service that did it, without the prefix ``railbus-``.
        source: Service and instance, as in the events.
        error: Why it failed; None where it did not.
    """

    name: str
    span_id: int
    parent_id: int | None
    start_ns: int
    end_ns: int
    service: str
    source: str = ""
    kind: SpanKind = "internal"
    attributes: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """The spans of one request; the first is the root."""

    trace_id: int
    spans: tuple[Span, ...]


def trace_of(request_id: str, events: Sequence[LogEvent], traceparent: str | None) -> Trace | None:
    """Return a request's trace; None while it is not closed, or where its ``Request`` is not among the events.

    Args:
        request_id: Whose.
        events: Its events; those of one topic in the order of the log.
        traceparent: The trace that the client began, or the edge for it.
    """
    found = latency(request_id, events)
    request = next((each.event for each in events if isinstance(each.event, Request) and each.event.attempt == 1), None)
    if found is None or request is None:
        return None
    trace_id, root_id, parent_id = _ids(request_id, traceparent)
    tree = _Tree(request, events, found, root_id)
    return Trace(trace_id, (tree.root(parent_id), *tree.parts(), *tree.verdict(), *tree.attempts(), *tree.check()))


def is_sampled(traceparent: str | None) -> bool:
    """Return whether the client wants its request traced; without a word from it, yes."""
    return traceparent is None or bool(int(traceparent[-2:], 16) & 1)


def _ids(request_id: str, traceparent: str | None) -> tuple[int, int, int | None]:
    """Return trace id, the root's span id, and its parent's: the client's span, if the client began the trace."""
    own = int(request_id.replace("-", ""), 16)
    if traceparent is None:
        return own, _span_id(request_id, "root"), None
    _, trace, span, _ = traceparent.split("-")
    if int(trace, 16) == own:  # the edge began the trace, and named the root
        return own, int(span, 16), None
    return int(trace, 16), _span_id(request_id, "root"), int(span, 16)


def _span_id(request_id: str, name: str) -> int:
    return int.from_bytes(blake2b(f"{request_id}/{name}".encode(), digest_size=8).digest()) or 1


def _ns(at_ms: float) -> int:
    """Return nanoseconds. A time of day must be whole milliseconds: a float has no room for more behind it."""
    return round(at_ms * _NS_PER_MS)


def _effective_close(request_id: str, events: Sequence[LogEvent]) -> Closed:
    """Return the ``Closed`` that ended the request; one whose cause did not hold may come before it."""
    closes = [each.event for each in events if isinstance(each.event, Closed)]
    if len(closes) == 1:
        return closes[0]
    screen = Screen(request_id)
    for at_ms, event in events:
        if isinstance(event, StreamEvent):
            screen.feed(event, at_ms)
    return closes[0] if screen.closed is None else screen.closed


class _Tree:
    """The spans of one request, from its events and the parts of its time."""

    def __init__(self, request: Request, events: Sequence[LogEvent], found: Latency, root_id: int) -> None:
        self._request = request
        self._events = events
        self._latency = found
        self._root_id = root_id
        self._begin_ns = request.at * 1_000 + _ns(found.clock_skew_ms)
        self._end_ns = self._begin_ns + _ns(found.total_ms)

    def root(self, parent_id: int | None) -> Span:
        request, found = self._request, self._latency
        closed = _effective_close(request.request_id, self._events)
        receipt = next((each.event for each in reversed(self._events) if isinstance(each.event, Detached)), None)
        cutovers = (
            SpanEvent("cutover", _ns(at_ms), {"railbus.trigger": event.trigger, "railbus.attempt": event.attempt})
            for at_ms, event in self._events
            if isinstance(event, Cutover)
        )
        attempt = closed.attempt or 1
        runs = [each.event for each in self._events if isinstance(each.event, Started | Finished)]
        return Span(
            name=f"chat {request.model}",
            span_id=self._root_id,
            parent_id=parent_id,
            start_ns=self._begin_ns,
            end_ns=self._end_ns,
            service="edge",
            source=request.source,
            kind="server",
            attributes=request_attributes(request)
            | end_attributes(closed, found, receipt, [run for run in runs if run.attempt == attempt]),
            events=tuple(cutovers),
            error=(closed.cause or closed.outcome) if closed.outcome in _FAILED else None,
        )

    def parts(self) -> Iterator[Span]:
        """Yield the parts of the request's time; the end of each is the beginning of the next."""
        at_ms, end_ns = 0.0, self._begin_ns
        for part, took_ms in self._latency.parts:
            begin_ns, at_ms = end_ns, at_ms + took_ms
            end_ns = self._begin_ns + _ns(at_ms)
            if end_ns > begin_ns:
                yield self._child(part, begin_ns, end_ns, WORKS[part], attributes={"railbus.part": part})

    def verdict(self) -> Iterator[Span]:
        """Yield the judging of the prompt, and each rail: they begin together."""
        for at_ms, event in self._events:
            if not isinstance(event, Verdict):
                continue
            begin_ns = _ns(at_ms) - _ns(event.total_ms)
            verdict = self._child(
                "verdict", begin_ns, _ns(at_ms), "rails", source=event.source,
                attributes={"railbus.decision": event.decision, "railbus.policy_version": event.policy_version},
            )  # fmt: skip
            yield verdict
            for number, rail in enumerate(event.rails):
                end_ns = min(begin_ns + _ns(rail.ms), _ns(at_ms))
                yield self._child(
                    f"rail {rail.rail}", begin_ns, end_ns, "rails", source=event.source, parent=verdict,
                    key=str(number), attributes={"railbus.rail": rail.rail, "railbus.result": rail.result},
                    error=rail.result if rail.result in {"broke", "timeout"} else None,
                )  # fmt: skip
            return

    def attempts(self) -> Iterator[Span]:
        """Yield each execution of the request by a worker; an event may be on the log twice."""
        runs: dict[str, tuple[int, Started]] = {}
        for at_ms, event in self._events:
            if isinstance(event, Started):
                runs.setdefault(event.run, (at_ms, event))
        for at_ms, started in runs.values():
            yield self._attempt(at_ms, started)

    def _attempt(self, started_ms: int, started: Started) -> Span:
        begin_ns = _ns(started_ms) - _ns(started.queue_ms)
        spoken = False
        end_ms = started_ms
        attributes: Attributes = attempt_attributes(self._request, started)
        error: str | None = None
        for at_ms, event in self._events:
            if not isinstance(event, RunEvent) or event.run != started.run or isinstance(event, Cleared | Recall):
                continue
            end_ms = max(end_ms, at_ms)
            if isinstance(event, Chunk) and not spoken:
                spoken = True
                attributes["gen_ai.response.time_to_first_chunk"] = (_ns(at_ms) - begin_ns) / 1e9
            elif isinstance(event, Finished):
                attributes |= finished_attributes(event)
            elif isinstance(event, Failed):
                attributes |= failed_attributes(event)
                error = event.error_class
        return self._child(
            f"chat {started.model}", begin_ns, _ns(end_ms), started.source.partition("/")[0], key=started.run,
            source=started.source, kind="client", attributes=attributes, error=error,
        )  # fmt: skip

    def check(self) -> Iterator[Span]:
        """Yield the check of the answer: from its first chunk to the last word of safety."""
        words = [(at_ms, each) for at_ms, each in self._events if isinstance(each, Cleared | Recall)]
        first_ms = next((at_ms for at_ms, event in self._events if isinstance(event, Chunk)), None)
        if not words or first_ms is None:
            return
        recalls = tuple(
            SpanEvent(
                "recall", _ns(at_ms),
                {"railbus.action": event.action, "railbus.rule": event.rule, "railbus.category": event.category},
            )
            for at_ms, event in words
            if isinstance(event, Recall)
        )  # fmt: skip
        last_ms, last = words[-1]
        yield self._child(
            "check", _ns(min(first_ms, last_ms)), _ns(last_ms), "safety", source=last.source, events=recalls,
            attributes={"railbus.policy_version": last.policy_version, "railbus.recalls": len(recalls)},
        )  # fmt: skip

    def _child(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        service: str,
        *,
        key: str = "",
        parent: Span | None = None,
        **more: object,
    ) -> Span:
        values: dict[str, object] = {
            "name": name, "span_id": _span_id(self._request.request_id, f"{name}/{key}"),
            "parent_id": self._root_id if parent is None else parent.span_id, "start_ns": start_ns,
            "end_ns": max(start_ns, end_ns), "service": service,
        }  # fmt: skip
        return Span(**(values | more))  # type: ignore[arg-type]
