"""What the ledger knows about one request, from its ``Account`` event and its ``Detached`` events (receipts)."""

from typing import Self

import msgspec

from schemas.requests import Lane
from schemas.side_events import Account, AttemptAccount, Detached, Route, StageTimes
from schemas.stream import Outcome

CLOUD_ENGINE = "vertex"
"""The name of the engine in the ``Started`` of a cloud worker."""

STAGES = StageTimes.__struct_fields__


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """The part of an ``Account`` event that the ledger uses. Times are in microseconds."""

    at: int
    source: str
    tenant: str
    outcome: Outcome
    lane: Lane
    route: Route
    model: str | None
    policy_version: str | None
    closed_at: int
    request_at: int | None
    stages_us: tuple[int, ...]
    first_text_us: int | None
    governance_first_us: int
    governance_total_us: int
    generation_us: int
    tokens: int
    later_tokens: int
    prompt_tokens: int
    speculated: bool
    engine_us: int
    fallbacks: int
    retries: int
    recalls: int
    cloud_nano_usd: int
    service_class: str | None = None
    longest_pause_us: int = 0


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """Summary of what was sent to the clients of one request, from their ``Detached`` events.

    Attributes:
        sent_at: Time, in microseconds since the epoch, when the first client had the whole answer; None if none had it.
        first_text_us: Time from the arrival of the request to the first text; None if no text was sent.
        exposed_tokens: Largest number of unchecked tokens that a client saw at once.
        exposure_us: Longest time that a client saw text before its recall.
        recalled_tokens: Largest number of visible tokens that one recall removed.
    """

    sent_at: int | None = None
    first_text_us: int | None = None
    exposed_tokens: int = 0
    exposure_us: int = 0
    recalled_tokens: int = 0

    def join(self, other: "Receipt") -> "Receipt":
        """Combine two receipts of the same request into one."""
        return Receipt(
            _least(self.sent_at, other.sent_at),
            _least(self.first_text_us, other.first_text_us),
            max(self.exposed_tokens, other.exposed_tokens),
            max(self.exposure_us, other.exposure_us),
            max(self.recalled_tokens, other.recalled_tokens),
        )


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One request in the ledger.

    Attributes:
        facts: Data of the ``Account`` event; None if it was not read yet.
        receipt: Combined data of the ``Detached`` events; None if none was read yet.
        read_ms: Append time of the newest of the events that were read, in milliseconds since the epoch.
    """

    facts: Facts | None = None
    receipt: Receipt | None = None
    read_ms: int = 0

    def join(self, other: "Entry") -> "Entry":
        """Combine two entries of one request. The operation is commutative, associative and idempotent."""
        facts, receipt = self.facts, self.receipt
        # If a request has several accounts, the one that was written first counts.
        if other.facts is not None and (facts is None or _before(other.facts, facts)):
            facts = other.facts
        if other.receipt is not None:
            receipt = other.receipt if receipt is None else receipt.join(other.receipt)
        return Entry(facts, receipt, max(self.read_ms, other.read_ms))

    def says_the_same(self, other: "Entry") -> bool:
        """Return whether both entries are equal apart from ``read_ms``."""
        return self.facts == other.facts and self.receipt == other.receipt

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode an entry that ``encode`` encoded.

        Raises:
            msgspec.MsgspecError: The bytes are not an encoded entry.
        """
        return msgspec.msgpack.decode(value, type=cls)


_ENCODER = msgspec.msgpack.Encoder()


def facts_of(account: Account) -> Facts:
    voice = next((each for each in account.attempts if each.attempt == account.voice), None)
    stages = account.stages
    return Facts(
        at=account.at,
        source=account.source,
        tenant=account.tenant,
        outcome=account.outcome,
        lane=account.lane,
        route=account.route,
        model=None if voice is None else voice.model,
        policy_version=account.policy_version,
        closed_at=account.closed_at,
        request_at=account.request_at,
        stages_us=() if stages is None else tuple(_us(getattr(stages, name)) for name in STAGES),
        first_text_us=None if account.first_text_ms is None else _us(account.first_text_ms),
        governance_first_us=_us(account.governance_first_text_ms),
        governance_total_us=_us(account.governance_total_ms),
        generation_us=_us(account.generation_ms),
        tokens=account.tokens,
        later_tokens=account.later_tokens,
        prompt_tokens=sum(each.usage.prompt_tokens for each in account.attempts),
        speculated=voice is not None and voice.speculation is not None and voice.speculation.drafted > 0,
        engine_us=sum(map(_engine_us, account.attempts)),
        fallbacks=account.fallbacks,
        retries=account.retries,
        recalls=account.recalls,
        cloud_nano_usd=round(account.cost_usd * 1e9),
        service_class=account.service_class,
        longest_pause_us=_us(account.longest_pause_ms),
    )


def receipt_of(event: Detached) -> Receipt:
    return Receipt(
        sent_at=event.at if event.reason == "complete" else None,
        first_text_us=None if event.first_text_ms is None else _us(event.first_text_ms),
        exposed_tokens=event.exposed_tokens,
        exposure_us=_us(event.exposure_ms),
        recalled_tokens=event.recalled_tokens,
    )


def _before(one: Facts, other: Facts) -> bool:
    return (one.at, _ENCODER.encode(one)) < (other.at, _ENCODER.encode(other))


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _us(ms: float) -> int:
    return round(ms * 1_000)


def _engine_us(attempt: AttemptAccount) -> int:
    if attempt.engine == CLOUD_ENGINE or attempt.started_at is None or attempt.last_chunk_at is None:
        return 0
    return max(0, attempt.last_chunk_at - attempt.started_at)
