"""Find the batch size at which throughput stops growing, and the batch size at which latency exceeds its limits."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from services.physics.statistics import Interval, percentile
from services.tuner.measurements import Load, values
from services.tuner.statistics import mean_interval

KNEE_SHARE: Final = 0.9
"""Minimum throughput at the knee, as a share of the highest. The knee is where throughput stops growing."""

RESAMPLES: Final = 400
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """The measurements of one batch size, over all rounds.

    Attributes:
        good: Whether no request failed and the latencies are within their limits.
    """

    batch: int
    tokens_per_s: Interval
    first_token_p50_ms: float
    first_token_p99_ms: float
    token_p99_ms: float
    requests: int
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinding:
    """The result of ``railbus tune --find batch``.

    Attributes:
        knee: Smallest batch size with at least ``KNEE_SHARE`` of the highest throughput, with a confidence interval.
        still_growing: Whether a batch size above the largest measured one may give a higher throughput.
        breaks_at: Smallest batch size at which a latency exceeded its limit or a request failed; None if there is none.
        best: The recommended batch size; None if there is none.
    """

    rows: tuple[BatchRow, ...]
    knee: Interval
    still_growing: bool
    breaks_at: int | None
    best: int | None


def batch_sizes(largest: int) -> list[int]:
    """Return the powers of two below ``largest``, and ``largest``."""
    return sorted({1 << power for power in range(largest.bit_length()) if 1 << power < largest} | {largest})


def find_batch(
    rounds: Sequence[Mapping[int, Sequence[Load]]], *, slo_ttft_ms: float, slo_token_ms: float, seed: int = 0
) -> BatchFinding:
    """Find the best batch size. Each element of ``rounds`` maps batch sizes to the measurements of one round."""
    sizes = sorted(rounds[0])
    throughput = {size: [values(each[size]).get("tokens_per_s", 0.0) for each in rounds] for size in sizes}
    rows = tuple(
        _row(size, [load for each in rounds for load in each[size]], throughput[size], slo_ttft_ms, slo_token_ms)
        for size in sizes
    )
    rng = random.Random(seed)  # noqa: S311 - it must be repeatable
    indexes = range(len(rounds))
    resampled = [knee(throughput, [rng.choice(indexes) for _ in indexes]) for _ in range(RESAMPLES)]
    value = float(knee(throughput, list(indexes)))
    low, high = (percentile(resampled, share) for share in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    found = Interval(value, min(value, low), max(value, high))
    breaks_at = next((row.batch for row in rows if not row.good), None)
    allowed = [row.batch for row in rows if row.batch <= found.value and (breaks_at is None or row.batch < breaks_at)]
    return BatchFinding(
        rows=rows,
        knee=found,
        still_growing=found.high >= sizes[-1],
        breaks_at=breaks_at,
        best=max(allowed, default=None),
    )


def knee(throughput: Mapping[int, Sequence[float]], rounds: Sequence[int]) -> int:
    """Return the smallest batch size whose mean throughput is at least ``KNEE_SHARE`` of the highest mean.

    ``rounds`` has the indexes of the rounds to average over. An index may occur several times.
    """
    means = {size: fmean(found[each] for each in rounds) for size, found in throughput.items()}
    enough = KNEE_SHARE * max(means.values())
    return min(size for size, mean in means.items() if mean >= enough)


def _row(
    batch: int, loads: Sequence[Load], throughput: Sequence[float], slo_ttft_ms: float, slo_token_ms: float
) -> BatchRow:
    found = values(loads)
    first, token = found.get("first_token_p99_ms", float("inf")), found.get("token_p99_ms", 0.0)
    failures = any(not row.answered for load in loads for row in load.requests)
    return BatchRow(
        batch=batch,
        tokens_per_s=mean_interval(throughput, CONFIDENCE),
        first_token_p50_ms=found.get("first_token_p50_ms", float("inf")),
        first_token_p99_ms=first,
        token_p99_ms=token,
        requests=sum(len(load.requests) for load in loads),
        good=not failures and first <= slo_ttft_ms and token <= slo_token_ms,
    )
