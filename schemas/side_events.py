"""Events that are not on the stream log: control, receipts, accounts, ledger windows, dead letters."""

from typing import Annotated, Literal

import msgspec
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


class Cancel(Event, frozen=True, kw_only=True):
    """A worker must stop generating an answer.

    Attributes:
        attempt: Number of the attempt to stop; None means all attempts of the request.
        reason: Why the attempt is stopped.
    """

    attempt: Attempt | None = None
    reason: CancelReason


class Attached(Event, frozen=True, kw_only=True):
    """A client connection began to receive a request's answer.

    Attributes:
        connection: Id of the connection.
        transport: How the client is connected.
        partition: Number of the stream log's partition that is read for the connection.
        resumed_from: Id of the last op that the client already had; None if it had none. An op is an instruction to the
            client, such as to append text. An id is ``partition:offset:index``: the place of an event on the log, and
            the number of the op among the ops of this event, from 0.
    """

    connection: Name
    transport: Transport
    partition: Count
    resumed_from: Name | None = None


class Detached(Event, frozen=True, kw_only=True):
    """A client connection ended. The fields tell what the client was sent on this connection.

    An op is an instruction to the client, such as to append text.

    Attributes:
        connection: Id of the connection, as in ``Attached``.
        reason: Why the connection ended.
        ops: Number of ops that were sent.
        ops_hash: SHA-256 (hex) of the sent ops as JSON lines. A correct replay of the log gives the same hash.
        last: Id of the last op that was sent, in the format of ``Attached.resumed_from``; None if no op was sent.
        first_text_ms: Time from the arrival of the request until text was first sent, in milliseconds; None if no text
            was sent.
        exposed_tokens: Largest number of unchecked tokens that the client saw at once.
        exposure_ms: Longest time for which recalled text was shown, in milliseconds.
        recalled_tokens: Maximum number of visible tokens that one recall removed.
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


class AttemptAccount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Costs and results of one attempt.

    Times are in microseconds since the epoch. The time of something that did not happen is None.

    Attributes:
        attempt: Number of the attempt.
        run: Id of the attempt's first run; None if no run started.
        model: The model that answered.
        engine: The engine that ran the model.
        trigger: Why the router started the attempt; None for attempt 1.
        started_at: Time of ``Started``.
        first_chunk_at: Time of the first chunk.
        last_chunk_at: Time of the last chunk.
        last_seq: ``seq`` of the last chunk; -1 if there was none.
        error_class: Class of the failure; None if the attempt did not fail.
        usage: Numbers of tokens.
        speculation: Totals of speculative decoding.
        opened_at: Append time of the ``Cutover`` event by which the router started the attempt; None for attempt 1.
        details: Details of the attempt's first run; None if no run started, or if an older router version wrote the
            account.
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
    usage: Usage = msgspec.field(default_factory=Usage)
    speculation: Speculation | None = None
    opened_at: AtUs | None = None
    details: RunDetails | None = None


class StageTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The time from the receipt of a request until it was closed, divided into consecutive parts.

    The parts are in the order of time, in milliseconds by the broker's clock.

    Attributes:
        post_ms: Time from the receipt at the edge until the request was on the log.
        lost_attempts_ms: Time in attempts that were given up.
        worker_ms: Time in Kafka and in the worker's queue, until the run started.
        engine_queue_ms: Time in the engine's queue.
        prefill_ms: Time from the end of the engine's queue until the first chunk was on the log.
        rails_ms: Time for which the first text waited for the verdict.
        hold_back_ms: Time for which the first text waited until it was cleared.
        decode_ms: Time from the first visible text until the last chunk was on the log.
        final_hold_back_ms: Time for which the last text waited until it was cleared.
        close_ms: Time from the end of the parts above until the router closed the request.
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


class Account(Event, frozen=True, kw_only=True):
    """The costs and times of one closed request.

    The voice is the run whose text is shown.

    Attributes:
        outcome: How the request ended.
        lane: Lane of the request, ``interactive`` or ``batch``.
        service_class: The class whose deadlines applied; None in accounts by a router version without classes.
        received_at: Time of the request's receipt, by the broker's clock, in microseconds since the epoch.
        verdict_at: Append time of the verdict; None without a verdict.
        rails_ms: Duration of the rails, in milliseconds.
        closed_at: Append time of ``Closed``.
        attempts: Costs and results of each attempt.
        recalls: Number of recalls that took effect.
        cost_usd: Cost of the attempts in the cloud, in US dollars.
        request_at: ``at`` of the ``Request``, by the edge's clock; None if no ``Request`` was read.
        stages: The parts of the time from receipt to ``Closed``; None without a ``Request``.
        first_text_ms: Time from receipt until text could be shown; None if no text could be shown.
        governance_first_text_ms: By how much rails and safety delayed the first visible text, in milliseconds.
        governance_total_ms: By how much rails and safety delayed the last visible text, in milliseconds.
        hidden_rails_ms: Time for which the rails ran without delaying the answer, in milliseconds.
        generation_ms: Time from the voice's first chunk to its last.
        longest_pause_ms: Longest time between two chunks of the voice.
        tokens: Number of the voice's tokens before ``Closed``.
        later_tokens: Number of the voice's tokens after its first chunk, before ``Closed``.
        clock_skew_ms: Estimate of the milliseconds (0 or negative) to add to ``request_at`` to get the time by the
            broker's clock. The field ``stages`` already includes this correction.
        voice: Attempt (1, 2 and so on) of the run that was the voice when the request was closed. None if no run was
            the voice, or if the prompt was denied.
        route: Where the voice ran; ``none`` if ``voice`` is None.
        fallbacks: Number of attempts in the cloud.
        retries: Number of further attempts on the self-hosted engines.
        policy_version: Version of the policy that judged the request; None if no policy did.
        open_since: The time from which a router that takes over the partition must read the log, by the broker's clock,
            in microseconds since the epoch. When this account was written, all open requests of the partition had begun
            at this time or later. None in accounts by an older router version.
        cause: The reason why the request was closed, as a code for programs.
        request: The parameters of the request; None without a ``Request``, and in accounts by an older router version.
        verdict: The effective verdict; None without a verdict, and in accounts by an older router version.
        check: How the answer was checked; None if it was not checked, and in accounts by an older router version.
        breaker: State of the router's circuit breaker when the router wrote this account.
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


class WindowSums(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sums over the requests of a window.

    Attributes:
        completed: Number of requests with the outcome ``completed``.
        recalled: Number of requests with the outcome ``recalled``.
        denied: Number of requests with the outcome ``denied``.
        cancelled: Number of requests with the outcome ``cancelled``.
        failed: Number of requests with the outcome ``failed``, ``expired`` or ``rejected``.
        judged: Number of requests whose class has objectives. ``denied`` and ``cancelled`` requests do not count.
        good: Number of judged requests that met all objectives.
        delivered: Number of requests whose client received the whole answer.
        fell_back: Number of requests with an attempt in the cloud.
        retried: Number of requests with a further attempt on the self-hosted engines.
        recalls: Number of recalls that took effect.
        tokens: Number of tokens of the answers.
        prompt_tokens: Number of tokens of the prompts, counted for each attempt.
        recalled_tokens: Number of visible tokens that recalls removed. Only the largest recall of each request counts.
        exposure_ms: Sum, over the requests, of the longest time for which recalled text was shown.
        speculated: Number of requests with speculative decoding.
        spent_first_ms: Time by which rails and safety delayed the first visible text.
        lost_ms: Time in attempts that were given up.
        engine_ms: Time that the self-hosted engines worked on these requests.
        usd: Cost of the cloud and of the engines, in US dollars.
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


class Window(AnyEvent, frozen=True, kw_only=True):
    """Sums over the requests with equal properties that were closed in one window of time.

    The properties are tenant, lane, class, route, model and policy version. A reader adds up records that differ only
    in ``part``. A later record replaces an earlier one with the same window, properties and ``part``.

    Attributes:
        tenant: Tenant of the requests.
        start_at: Start of the window, in microseconds since the epoch.
        end_at: End of the window, in microseconds since the epoch.
        requests: Number of requests that were closed in the window.
        earned_ms: Time that speculative decoding saved, over the requests for which it is known.
        spent_ms: Time by which rails and safety delayed the last visible text.
        lane: Lane of the requests.
        service_class: Class of the requests; None for accounts by a router version without classes.
        route: Where the answers came from.
        model: The model that answered; None if no model answered.
        policy_version: Version of the policy that judged the requests.
        part: Number of the partition that has the accounts of the requests.
        final: Whether no later record replaces this one.
        wanted_share: Share of the requests that must meet the objectives of their class. None if the class has no
            objectives. An older ledger version always wrote None.
        sums: Numbers of requests by outcome, and further sums.
        stages: For each stage of a request until ``Closed``, the time in this stage, summed over the requests.
        delivery_ms: Sum of the times from ``Closed`` until the client had the last byte.
        first_text: Histogram of the time to the first text in milliseconds, as pairs of bucket and number of requests.
        between_tokens: Histogram of the mean time between two tokens of each request, in milliseconds.
        total: Histogram of the time from the receipt of a request until a client had the whole answer, in
            milliseconds. If no client had the whole answer, the time until ``Closed`` counts.
        exposed_tokens: Histogram, over the requests, of the largest number of unchecked tokens that a client saw at
            once.
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
    sums: WindowSums = msgspec.field(default_factory=WindowSums)
    stages: StageTimes = msgspec.field(default_factory=StageTimes)
    delivery_ms: Ms = 0.0
    first_text: Buckets = ()
    between_tokens: Buckets = ()
    total: Buckets = ()
    exposed_tokens: Buckets = ()


class DeadLetter(AnyEvent, frozen=True, kw_only=True):
    """A record that could not be read.

    Attributes:
        at: Time at which the dead letter was written, in microseconds since the epoch.
        source: Service and instance that wrote the dead letter.
        topic: Topic of the record.
        partition: Partition number of the record.
        offset: Offset of the record.
        reason: Why the record could not be read.
        key_b64: The record's key in base64; None if it had no key.
        value_b64: The record's value in base64; None if it had no value.
        headers: The record's headers, as pairs of name and value. Only the values are in base64.
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
