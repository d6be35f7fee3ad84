"""Histograms that can be added and subtracted. Their buckets are those of DDSketch (Masson et al., VLDB 2019).

Quantiles have a relative error of at most ``RELATIVE_ERROR``, if the values are between ``LEAST`` and ``MOST``.
"""

from collections.abc import Iterable, Iterator
from math import ceil, log
from typing import Final

RELATIVE_ERROR: Final = 0.02

LEAST: Final = 0.01
"""Values up to this are in the lowest bucket."""

MOST: Final = 1e8
"""Values from this on are in the highest bucket. As a number of milliseconds, it is more than a day."""

_BASE: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_BASE: Final = log(_BASE)
LOWEST: Final = ceil(log(LEAST) / _LOG_BASE) - 1
HIGHEST: Final = ceil(log(MOST) / _LOG_BASE)


def bucket_of(value: float) -> int:
    return LOWEST if value <= LEAST else HIGHEST if value >= MOST else ceil(log(value) / _LOG_BASE)


def value_of(bucket: int) -> float:
    """Return the value that ``Histogram.quantile`` reports for all values in the bucket."""
    return 0.0 if bucket <= LOWEST else 2 * _BASE**bucket / (_BASE + 1)


class Histogram:
    """Counts how many values are in each bucket.

    Attributes:
        counts: Number of values by bucket. Empty buckets are left out.
    """

    __slots__ = ("counts",)

    def __init__(self, buckets: Iterable[tuple[int, int]] = ()) -> None:
        self.counts: dict[int, int] = {}
        for bucket, count in buckets:
            self.add(bucket, count)

    def add(self, bucket: int, count: int = 1) -> None:
        """Add ``count`` values to a bucket. If ``count`` is negative, remove values."""
        now = self.counts.get(bucket, 0) + count
        if now:
            self.counts[bucket] = now
        else:
            self.counts.pop(bucket, None)

    def merge(self, other: "Histogram", sign: int = 1) -> None:
        for bucket, count in other.counts.items():
            self.add(bucket, sign * count)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def buckets(self) -> tuple[tuple[int, int], ...]:
        return tuple(sorted(self.counts.items()))

    def quantile(self, share: float) -> float | None:
        """Return the quantile for ``share`` (0 to 1) by the nearest-rank method; None if there are no values."""
        total = self.total
        if not total:
            return None
        rank, seen = ceil(share * total - 1e-9), 0  # 0.95 * 20 is a little more than 19
        for bucket, count in self.buckets():
            seen += count
            if seen >= rank:
                return value_of(bucket)
        raise AssertionError("the counts add up to their total")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.counts == other.counts

    def __hash__(self) -> int:
        raise TypeError("a histogram changes")

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.buckets())
