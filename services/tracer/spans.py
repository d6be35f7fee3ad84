"""Build the spans of a closed request's trace. Pure functions.

The root span is the request. The spans of ``PARTS`` follow one another. The other spans may overlap.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Literal

from schemas.account_details import RequestDetails, RunDetails
from schemas.side_events import Account, AttemptAccount, Detached, StageTimes
from services.stream.latency import settle
from services.tracer.attributes import Attributes, attempt_attributes, end_attributes, request_attributes

SpanKind = Literal["server", "client", "internal"]

PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "post_ms": ("post", "edge"),
    "lost_attempts_ms": ("lost attempts", "router"),
    "worker_ms": ("worker", "generator"),
    "engine_queue_ms": ("engine queue", "generator"),
    "prefill_ms": ("prefill", "generator"),
    "rails_ms": ("rails", "rails"),
    "hold_back_ms": ("hold-back", "safety"),
    "decode_ms": ("decode", "generator"),
    "final_hold_back_ms": ("final hold-back", "safety"),
    "close_ms": ("close", "router"),
    "delivery": ("delivery", "edge"),
}
"""The parts of a request's time, in order: name of the span, and service that the answer waited for. The last one, the
delivery, is not in the account.
"""

LEAST_RAIL_MS: Final = 1.0
"""A rail that passed in less than this time, in milliseconds, has no span of its own, because nobody looks for it and a
span costs 40 us."""

_STAGES: Final = StageTimes.__struct_fields__
_FAILED: Final = frozenset({"failed", "expired", "rejected"})
_NS_PER_MS: Final = 1_000_000
_NS_PER_US: Final = 1_000


@dataclass(frozen=True, slots=True)
class SpanEvent:
    name: str
    at_ns: int
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An OpenTelemetry span.

    Attributes:
        start_ns: Start in nanoseconds since the epoch.
        end_ns: End in nanoseconds since the epoch.
        service: Name of the service that did the work, without the prefix ``railbus-``.
        source: The process that did the work, as ``SERVICE/INSTANCE``; empty if unknown.
        error: Error code; None if the work did not fail.
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
    """The spans of one request. The first is the root."""

    trace_id: int
    spans: tuple[Span, ...]


def trace_of(account: Account, sent_at: int | None, receipt: Detached | None, traceparent: str | None) -> Trace | None:
    """Build a request's trace. Return None if ``account`` lacks ``request``, ``stages`` or ``request_at``."""
    if account.request is None or account.stages is None or account.request_at is None:
        return None
    trace_id, root_id, parent_id = _ids(account.request_id, traceparent)
    tree = _Tree(account, account.request, account.stages, sent_at, root_id)
    root = tree.root(parent_id, receipt)
    return Trace(trace_id, (root, *tree.parts(), *tree.verdict(), *tree.attempts(), *tree.check()))


def is_sampled(traceparent: str | None) -> bool:
    """Return whether the sampled flag of a ``traceparent`` is set. Without a ``traceparent``, return True."""
    return traceparent is None or bool(int(traceparent[-2:], 16) & 1)


def _ids(request_id: str, traceparent: str | None) -> tuple[int, int, int | None]:
    own = int(request_id.replace("-", ""), 16)
    if traceparent is None:
        return own, _span_id(request_id, "root"), None
    _, trace, span, _ = traceparent.split("-")
    if int(trace, 16) == own:  # the edge started the trace, and chose the root's id
        return own, int(span, 16), None
    return int(trace, 16), _span_id(request_id, "root"), int(span, 16)


def _span_id(request_id: str, name: str) -> int:
    return int.from_bytes(blake2b(f"{request_id}/{name}".encode(), digest_size=8).digest()) or 1


def _ns(ms: float) -> int:
    return round(ms * _NS_PER_MS)


class _Tree:
    def __init__(
        self, account: Account, request: RequestDetails, stages: StageTimes, sent_at: int | None, root_id: int
    ) -> None:
        self._account = account
        self._request = request
        self._root_id = root_id
        received_at = account.request_at or 0
        until_close = [_ns(getattr(stages, name)) for name in _STAGES]
        if sent_at is None:
            self._parts_ns, behind_ns = until_close, 0
        else:
            waited_ns = max(0, sent_at - received_at) * _NS_PER_US
            self._parts_ns = settle(until_close, waited_ns)
            behind_ns = min(max(0, sum(until_close) - waited_ns), until_close[0])  # the rule is that of ``settle``
        self._skew_ns = _ns(account.clock_skew_ms) + behind_ns
        self._begin_ns = received_at * _NS_PER_US + self._skew_ns
        self._end_ns = self._begin_ns + sum(self._parts_ns)

    def root(self, parent_id: int | None, receipt: Detached | None) -> Span:
        account, request = self._account, self._request
        cutovers = (
            SpanEvent(
                "cutover", each.opened_at * _NS_PER_US,
                {"railbus.trigger": each.trigger or "unknown", "railbus.attempt": each.attempt},
            )
            for each in account.attempts
            if each.opened_at is not None
        )  # fmt: skip
        return Span(
            name=f"chat {request.model}",
            span_id=self._root_id,
            parent_id=parent_id,
            start_ns=self._begin_ns,
            end_ns=self._end_ns,
            service="edge",
            source=request.source,
            kind="server",
            attributes=request_attributes(account, request)
            | end_attributes(account, receipt, self._skew_ns / _NS_PER_MS),
            events=tuple(cutovers),
            error=(account.cause or account.outcome) if account.outcome in _FAILED else None,
        )

    def parts(self) -> Iterator[Span]:
        end_ns = self._begin_ns
        for (name, service), took_ns in zip(PARTS.values(), self._parts_ns, strict=False):
            begin_ns, end_ns = end_ns, end_ns + took_ns
            if took_ns:
                yield self._child(name, begin_ns, end_ns, service, attributes={"railbus.part": name})

    def verdict(self) -> Iterator[Span]:
        found, account = self._account.verdict, self._account
        if found is None:
            return
        end_ns = found.appended_at * _NS_PER_US
        begin_ns = end_ns - _ns(account.rails_ms or 0.0)
        attributes: Attributes = {"railbus.decision": found.decision}
        if account.policy_version is not None:
            attributes["railbus.policy_version"] = account.policy_version
        verdict = self._child("verdict", begin_ns, end_ns, "rails", source=found.source, attributes=attributes)
        yield verdict
        for number, rail in enumerate(found.rails):
            if rail.result == "passed" and rail.ms < LEAST_RAIL_MS:
                continue
            yield self._child(
                f"rail {rail.rail}", begin_ns, min(begin_ns + _ns(rail.ms), end_ns), "rails", source=found.source,
                parent=verdict, key=str(number),
                attributes={"railbus.rail": rail.rail, "railbus.result": rail.result},
                error=rail.result if rail.result in {"broke", "timeout"} else None,
            )  # fmt: skip

    def attempts(self) -> Iterator[Span]:
        for attempt in self._account.attempts:
            if attempt.details is not None:
                yield self._attempt(attempt, attempt.details)

    def _attempt(self, attempt: AttemptAccount, run: RunDetails) -> Span:
        begin_ns = run.started_at * _NS_PER_US - _ns(run.queue_ms)
        attributes = attempt_attributes(self._request, attempt, run)
        if run.first_chunk_at is not None:
            first_ns = run.first_chunk_at * _NS_PER_US - begin_ns
            attributes["gen_ai.response.time_to_first_chunk"] = first_ns / 1e9
        return self._child(
            f"chat {attempt.model}", begin_ns, run.ended_at * _NS_PER_US, run.source.partition("/")[0],
            key=attempt.run or str(attempt.attempt), source=run.source, kind="client", attributes=attributes,
            error=attempt.error_class,
        )  # fmt: skip

    def check(self) -> Iterator[Span]:
        found = self._account.check
        runs = [each.details for each in self._account.attempts if each.details is not None]
        first_at = min((run.first_chunk_at for run in runs if run.first_chunk_at is not None), default=None)
        if found is None or first_at is None:
            return
        recalls = tuple(
            SpanEvent(
                "recall", each.appended_at * _NS_PER_US,
                {"railbus.action": each.action, "railbus.rule": each.rule, "railbus.category": each.category},
            )
            for each in found.recalls
        )  # fmt: skip
        yield self._child(
            "check", min(first_at, found.ended_at) * _NS_PER_US, found.ended_at * _NS_PER_US, "safety",
            source=found.source, events=recalls,
            attributes={"railbus.policy_version": found.policy_version, "railbus.recalls": len(recalls)},
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
            "name": name, "span_id": _span_id(self._account.request_id, f"{name}/{key}"),
            "parent_id": self._root_id if parent is None else parent.span_id, "start_ns": start_ns,
            "end_ns": max(start_ns, end_ns), "service": service,
        }  # fmt: skip
        return Span(**(values | more))  # type: ignore[arg-type]
