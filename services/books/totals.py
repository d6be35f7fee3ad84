"""The sums of a window, and what one request adds to them. All sums are integers."""

from typing import Final, NamedTuple, Self

import msgspec

from schemas.base import AtUs
from schemas.requests import Lane
from schemas.side_events import Route, StageTimes, Window, WindowSums
from services.books.config import US_PER_S, BooksConfig
from services.books.entry import STAGES, Entry, Facts, Receipt
from services.books.histogram import Histogram, bucket_of
from services.stream.latency import settle

_FAILED: Final = frozenset({"failed", "expired", "rejected"})
_JUDGED: Final = _FAILED | {"completed", "recalled"}
_ANSWERED: Final = frozenset({"completed", "recalled"})

_COUNTS: Final = (
    "completed", "recalled", "denied", "cancelled", "failed", "judged", "good", "delivered", "fell_back", "retried",
    "recalls", "tokens", "prompt_tokens", "recalled_tokens", "speculated",
)  # fmt: skip
_TIMES: Final = ("exposure_ms", "spent_first_ms", "lost_ms", "engine_ms")
_STAGES: Final = tuple(STAGES)
FIELDS: Final = ("requests", "earned", "spent", "usd", "delivery", *_COUNTS, *_TIMES, *_STAGES)
"""Names of the sums, in the order in which they are kept. Times are microseconds, money is billionths of a US dollar.
"""

HISTOGRAMS: Final = ("first_text", "between_tokens", "total", "exposed_tokens")
_AT: Final = {name: index for index, name in enumerate(FIELDS)}


class Cell(NamedTuple):
    """The fields by which the ledger groups requests. Each combination of values has its own sums."""

    tenant: str
    lane: Lane
    route: Route
    model: str | None
    policy_version: str | None
    service_class: str | None = None


class Share(NamedTuple):
    """What one request adds to the sums of its window.

    Attributes:
        start_s: Start of the window, in seconds since the epoch.
        sums: What the request adds to each sum, in the order of ``FIELDS``.
        buckets: For each histogram, in the order of ``HISTOGRAMS``: the bucket of the request's value. None if the
            request has no value for this histogram.
    """

    start_s: int
    cell: Cell
    sums: tuple[int, ...]
    buckets: tuple[int | None, ...]


def share_of(entry: Entry, config: BooksConfig) -> Share | None:
    """Return what a request adds to the sums of its window; None if its account was not read yet."""
    facts = entry.facts
    if facts is None:
        return None
    receipt = entry.receipt or Receipt()
    waited_us = _waited_us(facts, receipt)
    stages = list(facts.stages_us) or [0] * len(_STAGES)
    settled = [*stages, 0] if waited_us is None or not facts.stages_us else settle(stages, waited_us)
    total_us = sum(settled) if facts.stages_us else None
    first_us = receipt.first_text_us if receipt.first_text_us is not None else facts.first_text_us
    token_us = facts.generation_us / facts.later_tokens if facts.later_tokens else None
    objectives = config.objectives_of(facts.service_class, facts.lane)
    judged = facts.outcome in _JUDGED and objectives.any
    good = (
        judged and facts.outcome in _ANSWERED and objectives.kept(first_us, token_us, facts.longest_pause_us, total_us)
    )
    values = {
        "requests": 1,
        "spent": facts.governance_total_us,
        "usd": facts.cloud_nano_usd + round(config.usd_per_engine_s * facts.engine_us * 1_000),
        "delivery": settled[-1],
        "failed" if facts.outcome in _FAILED else facts.outcome: 1,
        "judged": int(judged),
        "good": int(good),
        "delivered": int(receipt.sent_at is not None),
        "fell_back": int(facts.fallbacks > 0),
        "retried": int(facts.retries > 0),
        "recalls": facts.recalls,
        "tokens": facts.tokens,
        "prompt_tokens": facts.prompt_tokens,
        "recalled_tokens": receipt.recalled_tokens,
        "exposure_ms": receipt.exposure_us,
        "spent_first_ms": facts.governance_first_us,
        "lost_ms": settled[_STAGES.index("lost_attempts_ms")],
        "engine_ms": facts.engine_us,
        **dict(zip(_STAGES, settled, strict=False)),
    }
    earned_us = _earned_us(facts, config)
    if earned_us is not None:
        values |= {"earned": earned_us, "speculated": 1}
    return Share(
        config.window_start_s(facts.closed_at),
        Cell(facts.tenant, facts.lane, facts.route, facts.model, facts.policy_version, facts.service_class),
        tuple(values.get(name, 0) for name in FIELDS),
        (
            _bucket(None if first_us is None else first_us / 1_000),
            _bucket(None if token_us is None else token_us / 1_000),
            _bucket(None if total_us is None else total_us / 1_000),
            _bucket(None if entry.receipt is None else float(receipt.exposed_tokens)),
        ),
    )


class Totals:
    __slots__ = ("histograms", "sums")

    def __init__(self) -> None:
        self.sums = [0] * len(FIELDS)
        self.histograms = tuple(Histogram() for _ in HISTOGRAMS)

    def add(self, share: Share, sign: int = 1) -> None:
        """Add the counts, times, tokens and costs of one request. If ``sign`` is -1, subtract them."""
        for index, value in enumerate(share.sums):
            if value:
                self.sums[index] += sign * value
        for histogram, bucket in zip(self.histograms, share.buckets, strict=True):
            if bucket is not None:
                histogram.add(bucket, sign)

    def merge(self, other: "Totals", sign: int = 1) -> None:
        self.sums = [one + sign * two for one, two in zip(self.sums, other.sums, strict=True)]
        for one, two in zip(self.histograms, other.histograms, strict=True):
            one.merge(two, sign)

    def of(self, name: str) -> int:
        """Return the sum with this name. Times are in microseconds, and money is in billionths of a US dollar."""
        return self.sums[_AT[name]]

    @property
    def empty(self) -> bool:
        return not self.of("requests")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Totals) and (self.sums, self.histograms) == (other.sums, other.histograms)

    def __hash__(self) -> int:
        raise TypeError("totals change")

    def encode(self) -> bytes:
        named = dict(zip(FIELDS, self.sums, strict=True))
        return msgspec.msgpack.encode((named, tuple(each.buckets() for each in self.histograms)))

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode sums that ``encode`` encoded.

        Raises:
            msgspec.MsgspecError: The bytes are not encoded sums.
        """
        named, buckets = msgspec.msgpack.decode(
            value, type=tuple[dict[str, int], tuple[tuple[tuple[int, int], ...], ...]]
        )
        totals = cls()
        totals.sums = [named.get(name, 0) for name in FIELDS]
        for histogram, pairs in zip(totals.histograms, buckets, strict=False):
            for bucket, count in pairs:
                histogram.add(bucket, count)
        return totals

    def window(
        self, cell: Cell, start_s: int, width_s: int, *, part: int, final: bool, wanted_share: float | None = None
    ) -> Window:
        start_at: AtUs = start_s * US_PER_S
        first, between, total, exposed = (each.buckets() for each in self.histograms)
        return Window(
            **cell._asdict(),
            start_at=start_at,
            end_at=start_at + width_s * US_PER_S,
            requests=self.of("requests"),
            earned_ms=self.of("earned") / 1_000,
            spent_ms=self.of("spent") / 1_000,
            part=part,
            final=final,
            wanted_share=wanted_share,
            sums=WindowSums(
                **{name: self.of(name) for name in _COUNTS},
                exposure_ms=self.of("exposure_ms") / 1_000,
                spent_first_ms=self.of("spent_first_ms") / 1_000,
                lost_ms=self.of("lost_ms") / 1_000,
                engine_ms=self.of("engine_ms") / 1_000,
                usd=self.of("usd") / 1e9,
            ),
            stages=StageTimes(**{name: self.of(name) / 1_000 for name in _STAGES}),
            delivery_ms=self.of("delivery") / 1_000,
            first_text=first,
            between_tokens=between,
            total=total,
            exposed_tokens=exposed,
        )


def totals_of(window: Window) -> tuple[Cell, Totals]:
    totals = Totals()
    sums, stages = window.sums, window.stages
    values = {
        "requests": window.requests,
        "earned": round(window.earned_ms * 1_000),
        "spent": round(window.spent_ms * 1_000),
        "usd": round(sums.usd * 1e9),
        "delivery": round(window.delivery_ms * 1_000),
        **{name: getattr(sums, name) for name in _COUNTS},
        **{name: round(getattr(sums, name) * 1_000) for name in _TIMES},
        **{name: round(getattr(stages, name) * 1_000) for name in _STAGES},
    }
    totals.sums = [values[name] for name in FIELDS]
    for histogram, name in zip(totals.histograms, HISTOGRAMS, strict=True):
        for bucket, count in getattr(window, name):
            histogram.add(bucket, count)
    return cell_of(window), totals


def cell_of(window: Window) -> Cell:
    return Cell(window.tenant, window.lane, window.route, window.model, window.policy_version, window.service_class)


def _waited_us(facts: Facts, receipt: Receipt) -> int | None:
    if receipt.sent_at is None or facts.request_at is None:
        return None
    return max(0, receipt.sent_at - facts.request_at)


def _earned_us(facts: Facts, config: BooksConfig) -> int | None:
    plain_ms = config.plain_ms(facts.model)
    if not facts.speculated or plain_ms is None:
        return None
    return round(plain_ms * 1_000 * facts.later_tokens) - facts.generation_us


def _bucket(value: float | None) -> int | None:
    return None if value is None else bucket_of(value)
