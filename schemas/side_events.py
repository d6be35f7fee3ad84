"""Low-rate events beside the stream log: control, receipts, accounts, ledger windows, dead letters."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from schemas.base import AnyEvent, Attempt, AtUs, Count, Event, Ms, Name, RunId, ShortText, Source, Tenant
from schemas.requests import Lane
from schemas.stream import LastSeq, Outcome, Speculation, Trigger, Usage

Transport = Literal["websocket", "sse", "http", "client"]
DetachReason = Literal["complete", "gone", "slow", "shutdown", "error"]
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
    """Edge: the connection ended; this is what it was sent.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(Event):
    """Router: the costs and times of one closed request.

    Attributes:
        outcome: How it ended.
        lane: Interactive or batch.
        received_at: Receipt, microseconds since the epoch.
        verdict_at: Time of the verdict; None without one.
        rails_ms: Time that the rails took, in milliseconds.
        closed_at: Time of ``Closed``.
        attempts: One account for each attempt.
        recalls: How many recalls were effective.
        cost_usd: Cost of cloud attempts, in US dollars.
    """

    outcome: Outcome
    lane: Lane = "interactive"
    received_at: AtUs
    verdict_at: AtUs | None = None
    rails_ms: Ms | None = None
    closed_at: AtUs
    attempts: Annotated[tuple[AttemptAccount, ...], Meta(max_length=100)] = ()
    recalls: Count = 0
    cost_usd: Annotated[float, Meta(ge=0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(AnyEvent):
    """Ledger: sums over the accounts of one tenant in one window of time.

    Attributes:
        tenant: Whose accounts.
        start_at: Window's start, microseconds since the epoch.
        end_at: Window's end.
        requests: Requests closed in it.
        earned_ms: Latency that speculation saved.
        spent_ms: Latency that governance added.
    """

    tenant: Tenant
    start_at: AtUs
    end_at: AtUs
    requests: Count
    earned_ms: float
    spent_ms: float


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
