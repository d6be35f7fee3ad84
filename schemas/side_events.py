"""Low-rate events beside the stream log: control, receipts, accounts, ledger windows, dead letters."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from schemas.account_details import CheckDetails, RequestDetails, RunDetails, VerdictDetails
from schemas.base import AnyEvent, Attempt, AtUs, Count, Event, Ms, Name, RunId, ShortText, Source, Tenant
from schemas.requests import Lane
from schemas.stream import Cause, LastSeq, Outcome, Speculation, Trigger, Usage

Transport = Literal["websocket", "sse", "http", "client"]
DetachReason = Literal["complete", "gone", "slow", "shutdown", "error"]
Route = Literal["none", "self_hosted", "cloud"]
Buckets = Annotated[tuple[tuple[Annotated[int, Meta(ge=-10_000, le=10_000)], Count], ...], Meta(max_length=2_000)]
BreakerState = Literal["closed", "open", "half_open"]
CancelReason = Literal["client_gone", "denied", "recalled", "cutover", "expired", "operator", "lost_race"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Event):
    """Router: stop generating, so that the engine spends nothing more.

    Attributes:
        attempt: Which attempt; None means all of the request's.
        reason: Why.
    """

    attempt: Attempt | None = None
    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Event):
    """Edge: a client connection began to receive this request's answer.

    Attributes:
        connection: Unique per connection.
        transport: How the client is connected.
        partition: Partition of the stream log that is read for it.
        resumed_from: Last ``partition:offset:index`` that the client already had; None at a first connection.
    """

    connection: Name
    transport: Transport
    partition: Count
    resumed_from: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached(Event):
    """Edge: the connection ended, after it was sent this much.

    Attributes:
        connection: As in ``Attached``.
        reason: Why it ended.
        ops: How many ops it was sent.
        ops_hash: SHA-256, hex, over the ops' JSON lines as sent, so that a replay can prove what was sent.
        last: ``partition:offset:index`` of the last op sent; None when none was.
        first_text_ms: Receipt to first text sent, in milliseconds; None when no text was.
        exposed_tokens: Largest number of tokens shown beyond what was cleared.
        exposure_ms: Longest time recalled text was shown, in milliseconds.
        recalled_tokens: Most tokens of recalled text that were visible when one recall removed them.
    """

    connection: Name
    reason: DetachReason
    ops: Count
    ops_hash: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
    last: Name | None = None
    first_text_ms: Ms | None = None
    exposed_tokens: Count = 0
    exposure_ms: Ms = 0.0
    recalled_tokens: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAccount:
    """What one attempt of a request cost and produced; times in microseconds since the epoch, None where unreached.

    Attributes:
        attempt: Which attempt.
        run: The execution that became the voice, or the first that started.
        model: The model that answered.
        engine: The engine that ran it.
        trigger: Why it was begun; None for the first.
        started_at: Time of ``Started``.
        first_chunk_at: Time of the first chunk.
        last_chunk_at: Time of the last chunk.
        last_seq: Last chunk's seq.
        error_class: How it failed, if it did.
        usage: Tokens.
        speculation: Drafting totals.
        opened_at: When its ``Cutover`` was appended; None for the first.
        details: Of its first run; None where none started, or from an older router.
    """

    attempt: Attempt
    run: RunId | None = None
    model: Name | None = None
    engine: Name | None = None
    trigger: Trigger | None = None
    started_at: AtUs | None = None
    first_chunk_at: AtUs | None = None
    last_chunk_at: AtUs | None = None
    last_seq: LastSeq = -1
    error_class: Name | None = None
    usage: Usage = field(default_factory=Usage)
    speculation: Speculation | None = None
    opened_at: AtUs | None = None
    details: RunDetails | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Where a request's time went until it was closed: consecutive parts, in milliseconds, by the broker's clock.

    Attributes:
        post_ms: The edge had the request; the log did not yet.
        lost_attempts_ms: An attempt ran that was given up.
        worker_ms: The bus and the worker's queue, until the engine began.
        engine_queue_ms: The engine's own queue.
        prefill_ms: The first token: prefill, one step, the bus.
        rails_ms: The first text was on the log; the verdict was not.
        hold_back_ms: The first text waited until safety had cleared it.
        decode_ms: The rest of the answer, from its first visible text on.
        final_hold_back_ms: The last text waited until safety had cleared it.
        close_ms: The final check and the router's decision.
    """

    post_ms: Ms = 0.0
    lost_attempts_ms: Ms = 0.0
    worker_ms: Ms = 0.0
    engine_queue_ms: Ms = 0.0
    prefill_ms: Ms = 0.0
    rails_ms: Ms = 0.0
    hold_back_ms: Ms = 0.0
    decode_ms: Ms = 0.0
    final_hold_back_ms: Ms = 0.0
    close_ms: Ms = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(Event):
    """Router: the costs and times of one closed request.

    Attributes:
        outcome: How it ended.
        lane: Interactive or batch.
        service_class: The class whose deadlines applied; None from a router that knew no classes.
        received_at: Receipt, microseconds since the epoch.
        verdict_at: Time of the verdict; None without one.
        rails_ms: Time that the rails took, in milliseconds.
        closed_at: Time of ``Closed``.
        attempts: One account for each attempt.
        recalls: How many recalls were effective.
        cost_usd: Cost of cloud attempts, in US dollars.
        request_at: ``at`` of the ``Request``: receipt by the edge's clock, to be compared with that edge's ``Detached``
            alone. None: no ``Request`` was read.
        stages: Where the time went from receipt to ``Closed``; None without a ``Request``.
        first_text_ms: From receipt until text was visible on the log; None when none was.
        governance_first_text_ms: How much later the first text was visible because of rails and safety.
        governance_total_ms: How much later the last text was.
        hidden_rails_ms: Time of the rails that nobody waited for.
        generation_ms: From the voice's first chunk to its last.
        longest_pause_ms: Longest time between two of its chunks.
        tokens: The voice's tokens before ``Closed``.
        later_tokens: Of those, all after its first chunk: what ``generation_ms`` was needed for.
        clock_skew_ms: By how much the edge's clock and the broker's differ at least; it is taken out of ``post_ms``.
        voice: The attempt that was the voice at the end.
        route: Where that attempt ran; ``none`` when nothing answered.
        fallbacks: Attempts that went to the cloud.
        retries: Further attempts on the self-hosted engines.
        policy_version: Of the policy that judged the request; None when none did.
        open_since: No other event that was appended before this, by the broker's clock, is about a request of this
            partition that is still open. Who takes the partition over reads from here. None from an older router.
        cause: Why it was closed, for programs.
        request: What was asked for; None without a ``Request``, or from an older router, as the next two.
        verdict: The verdict that counted; None without one.
        check: The check of the answer; None where none was checked.
        breaker: State of the router's breaker when it wrote this.
    """

    outcome: Outcome
    lane: Lane = "interactive"
    service_class: Name | None = None
    received_at: AtUs
    verdict_at: AtUs | None = None
    rails_ms: Ms | None = None
    closed_at: AtUs
    attempts: Annotated[tuple[AttemptAccount, ...], Meta(max_length=100)] = ()
    recalls: Count = 0
    cost_usd: Annotated[float, Meta(ge=0)] = 0.0
    request_at: AtUs | None = None
    stages: StageTimes | None = None
    first_text_ms: Ms | None = None
    governance_first_text_ms: Ms = 0.0
    governance_total_ms: Ms = 0.0
    hidden_rails_ms: Ms = 0.0
    generation_ms: Ms = 0.0
    longest_pause_ms: Ms = 0.0
    tokens: Count = 0
    later_tokens: Count = 0
    clock_skew_ms: float = 0.0
    voice: Attempt | None = None
    route: Route = "none"
    fallbacks: Count = 0
    retries: Count = 0
    policy_version: Name | None = None
    open_since: AtUs | None = None
    cause: Cause | None = None
    request: RequestDetails | None = None
    verdict: VerdictDetails | None = None
    check: CheckDetails | None = None
    breaker: BreakerState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSums:
    """Sums over the requests of a window.

    Attributes:
        completed: Requests that ended ``completed``.
        recalled: That ended ``recalled``.
        denied: That ended ``denied``.
        cancelled: That ended ``cancelled``.
        failed: That ended ``failed``, ``expired`` or ``rejected``.
        judged: To which the objectives of their class apply: completed, recalled and failed ones.
        good: Of those, the ones that met them all: completed or recalled, in time.
        delivered: Whose client had the whole answer.
        fell_back: With an attempt in the cloud.
        retried: With a further attempt on the self-hosted engines.
        recalls: Recalls that took effect.
        tokens: Tokens of the answers.
        prompt_tokens: Tokens of the prompts, of every attempt.
        recalled_tokens: Tokens that were visible when a recall removed them.
        exposure_ms: Time for which recalled text was shown.
        speculated: Requests in ``earned_ms``.
        spent_first_ms: Latency that governance added before the first visible text.
        lost_ms: Time in attempts that were given up.
        engine_ms: Time that the self-hosted engines worked on these requests.
        usd: What cloud and engines cost, in US dollars.
    """

    completed: Count = 0
    recalled: Count = 0
    denied: Count = 0
    cancelled: Count = 0
    failed: Count = 0
    judged: Count = 0
    good: Count = 0
    delivered: Count = 0
    fell_back: Count = 0
    retried: Count = 0
    recalls: Count = 0
    tokens: Count = 0
    prompt_tokens: Count = 0
    recalled_tokens: Count = 0
    exposure_ms: Ms = 0.0
    speculated: Count = 0
    spent_first_ms: Ms = 0.0
    lost_ms: Ms = 0.0
    engine_ms: Ms = 0.0
    usd: Annotated[float, Meta(ge=0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(AnyEvent):
    """Ledger: sums over the accounts and receipts of one kind of request in one window of time.

    Windows that differ only in ``part`` add up. Of two records with the same key and part, the later one on the log
    counts.

    Attributes:
        tenant: Whose accounts.
        start_at: Window's start, microseconds since the epoch. A request belongs where it was closed.
        end_at: Window's end.
        requests: Requests closed in it.
        earned_ms: Latency that speculation saved, where the plain time between two tokens is known.
        spent_ms: Latency that governance added until the last text was visible.
        lane: Of these requests.
        service_class: Of these requests; None where the router knew no classes.
        route: Where their answers came from.
        model: The model that answered; None when none did.
        policy_version: Of the policy that judged them.
        part: Partition number of the accounts.
        final: No later record of this window and part follows.
        wanted_share: Share of these requests that must be good, by the objectives of their class; None where it has
            none, or from an older ledger.
        sums: Further sums.
        stages: Sums of the stages' times, ``Closed`` included.
        delivery_ms: Sum of the time after ``Closed`` until the client had the last byte.
        first_text: Time to the first text in milliseconds: buckets and how many requests are in each.
        between_tokens: Mean time between two tokens of each request, likewise.
        total: What each client waited, likewise.
        exposed_tokens: Most tokens that each client was shown unchecked, likewise.
    """

    tenant: Tenant
    start_at: AtUs
    end_at: AtUs
    requests: Count
    earned_ms: float
    spent_ms: float
    lane: Lane = "interactive"
    service_class: Name | None = None
    route: Route = "none"
    model: Name | None = None
    policy_version: Name | None = None
    part: Count = 0
    final: bool = False
    wanted_share: Annotated[float, Meta(ge=0, le=1)] | None = None
    sums: WindowSums = field(default_factory=WindowSums)
    stages: StageTimes = field(default_factory=StageTimes)
    delivery_ms: Ms = 0.0
    first_text: Buckets = ()
    between_tokens: Buckets = ()
    total: Buckets = ()
    exposed_tokens: Buckets = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(AnyEvent):
    """Router: a record that could not be read, kept unchanged.

    Attributes:
        at: When it was written here, microseconds since the epoch.
        source: Who wrote it here.
        topic: Topic of the record.
        partition: Partition of the record.
        offset: Offset of the record.
        reason: Why it could not be read, naming the field.
        key_b64: The record's key, base64; None when it had none.
        value_b64: The record's value, base64; None when it had none.
        headers: Header names and base64 values.
        cut: Whether bytes were left out because the record was too long.
    """

    at: AtUs
    source: Source
    topic: Name
    partition: Count
    offset: Count
    reason: ShortText
    key_b64: str | None = None
    value_b64: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
