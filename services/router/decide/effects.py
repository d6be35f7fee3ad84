"""Build the events that carry out decisions: ``Cancel``, ``Account``, and the ``Request`` of a new attempt.

No I/O, no clock.
"""

from msgspec import structs

from schemas.account_details import CheckDetails, RequestDetails, VerdictDetails
from schemas.base import Event
from schemas.requests import Request
from schemas.side_events import Account, Cancel, CancelReason
from schemas.stream import Closed, Outcome
from schemas.topics import ACCOUNTS, CONTROL, DAY_MS, REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX
from services.processor import Write
from services.router.config import SETTLE_US
from services.router.decide.cutovers import egress_objection, next_messages
from services.router.state.request import EventContext, RequestState, request_key
from services.stream.latency import measure, stage_times

_CANCEL_REASONS: dict[Outcome, CancelReason] = {
    "denied": "denied",
    "recalled": "recalled",
    "cancelled": "client_gone",
    "completed": "lost_race",
    "failed": "expired",
    "expired": "expired",
    "rejected": "expired",
}


def begin_attempts(state: RequestState, known_us: int, context: EventContext) -> list[Write]:
    """Return a ``Request`` for each new attempt whose ``Request`` is not on the log yet."""
    writes: list[Write] = []
    for attempt, cutover in state.cutovers.items():
        if attempt in state.republished or attempt not in state.screen.candidates:
            continue
        if cutover.target == "vertex" and egress_objection(state) is not None:
            continue
        messages = next_messages(state)
        # It is written twice only if the router dies, or its partition moves, before the ``Request`` is read back. A
        # worker ignores an attempt that is among the last 10,000 that it has accepted. So the cloud is called twice
        # only if another worker also gets the partition of the ``Request`` in that moment.
        if state.request is None or messages is None or not state.should_write(request_key(attempt), known_us, context):
            continue
        waited_ms = max(0, context.now_us - state.received_us) / 1_000  # counts towards the deadline, below a day
        request: Request = structs.replace(
            state.request, attempt=attempt, messages=messages, source=context.source, waited_ms=min(waited_ms, DAY_MS)
        )
        own = REQUESTS_BATCH if state.lane == "batch" else REQUESTS
        topic = REQUESTS_VERTEX if cutover.target == "vertex" else own
        writes.append(Write(topic, request, state.traceparent))
    return writes


def stop_losers(state: RequestState, context: EventContext) -> list[Write]:
    """Return a ``Cancel`` for each attempt that may still be running, but whose text can no longer be shown."""
    lost = [attempt for attempt in state.running() if attempt not in state.screen.candidates]
    raced = state.screen.has_spoken and any(cutover.how == "race" for cutover in state.cutovers.values())
    return [_cancel(state, attempt, "lost_race" if raced else "cutover", context) for attempt in lost]


def stop_all(state: RequestState, reason: CancelReason, context: EventContext) -> list[Write]:
    running = state.running()
    if not running:
        return []
    state.cancelled.update(running)
    return [_cancel(state, None, reason, context)]


def after_close(state: RequestState, closed: Closed, known_us: int, context: EventContext) -> list[Write]:
    # A worker may have a rejected request, too: one in a wrong partition, or one that only a newer version can read.
    writes = stop_all(state, _CANCEL_REASONS[closed.outcome], context)
    if known_us >= settled_us(state) and state.should_write("account", known_us, context):
        writes.append(Write(ACCOUNTS, account_of(state, closed, context), state.traceparent))
    return writes


def settled_us(state: RequestState) -> int:
    """Return when to write the account of a closed request, in microseconds since the epoch; 0 for at once.

    If an attempt is still running, the account waits ``SETTLE_US`` for the token usage of this attempt.
    """
    running = any(record.started is not None and not record.ended for record in state.attempt_records.values())
    return state.closed_us + SETTLE_US if running else 0


def _cancel(state: RequestState, attempt: int | None, reason: CancelReason, context: EventContext) -> Write:
    if attempt is not None:
        state.cancelled.add(attempt)
    cancel = Cancel(**context.envelope(state), attempt=attempt, reason=reason)
    return Write(CONTROL, cancel, state.traceparent)


def account_of(state: RequestState, closed: Closed, context: EventContext) -> Account:
    verdict = state.screen.verdict
    started = state.screen.voice
    voice = None if started is None or state.stages.voice_run is None else started.attempt
    closed_at = _appended_at(state.stages.closed_ms, closed)
    accounts = {attempt: record.account() for attempt, record in sorted(state.attempt_records.items())}
    account = Account(
        **context.envelope(state),
        outcome=closed.outcome,
        lane=state.lane or "interactive",
        service_class=state.service_class,
        received_at=max(0, closed_at - max(0, state.closed_us - state.received_us)),
        verdict_at=None if verdict is None else _appended_at(state.stages.verdict_ms, verdict),
        rails_ms=None if verdict is None else verdict.total_ms,
        closed_at=closed_at,
        attempts=tuple(accounts.values()),
        recalls=len(state.recalls),
        cost_usd=sum(state.config.prices.of(accounts[attempt].usage) for attempt in state.cloud_attempts),
        voice=voice,
        route="none" if voice is None else "cloud" if voice in state.cloud_attempts else "self_hosted",
        fallbacks=len(state.cloud_attempts),
        retries=len(state.retries),
        policy_version=state.policy_version,
        cause=closed.cause,
        request=_request_details(state),
        verdict=_verdict_details(state),
        check=_check_details(state),
    )
    request_at, run = state.request_at, state.stages.voice_run
    if request_at is None or state.stages.closed_ms is None:  # for example, the ``Request`` was not read
        return account
    found = measure(state.stages, request_at / 1_000)
    return structs.replace(
        account,
        request_at=request_at,
        stages=stage_times(found),
        first_text_ms=found.first_text_ms,
        governance_first_text_ms=found.governance_first_text_ms,
        governance_total_ms=found.governance_total_ms,
        hidden_rails_ms=found.hidden_rails_ms,
        generation_ms=found.decode_ms,
        longest_pause_ms=0.0 if run is None else run.longest_pause_ms,
        tokens=found.tokens,
        later_tokens=found.later_tokens,
        clock_skew_ms=found.clock_skew_ms,
    )


def _appended_at(log_ms: float | None, event: Event) -> int:
    # By the broker's clock, because the ledger takes no account whose time is minutes before its append. A record
    # without a timestamp has only its writer's time.
    return round(log_ms * 1_000) if log_ms is not None and log_ms > 0 else event.at


def _request_details(state: RequestState) -> RequestDetails | None:
    request = state.request
    if request is None:
        return None
    sampling = request.sampling
    return RequestDetails(
        source=request.source,
        model=request.model,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        delivery=request.delivery.mode,
    )


def _verdict_details(state: RequestState) -> VerdictDetails | None:
    verdict, at_ms = state.screen.verdict, state.stages.verdict_ms
    if verdict is None or at_ms is None:
        return None
    appended_at = round(at_ms * 1_000)
    return VerdictDetails(
        source=verdict.source, appended_at=appended_at, decision=verdict.decision, rails=verdict.rails
    )


def _check_details(state: RequestState) -> CheckDetails | None:
    if state.checked is None:
        return None
    event, log_ms = state.checked
    version, recalls = event.policy_version, tuple(state.recalled)
    return CheckDetails(source=event.source, ended_at=log_ms * 1_000, policy_version=version, recalls=recalls)
