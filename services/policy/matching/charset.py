"""Sets of characters, as sorted ranges of code points."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

Range = tuple[int, int]
CharSet = tuple[Range, ...]
"""Disjoint inclusive ranges, ascending."""

LAST: Final = 0x10FFFF
_MAX_FOLDED_RANGE: Final = 0x500
"""Limit of ``without_case``: in a range of more characters, only the ASCII letters get their other case."""


def of(chars: Iterable[str]) -> CharSet:
    return union([(ord(char), ord(char)) for char in chars])


def union(ranges: Iterable[Range]) -> CharSet:
    """Join the ranges into one set. Overlapping and adjacent ranges become one."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(chars: CharSet) -> CharSet:
    ranges: list[Range] = []
    after = 0
    for low, high in chars:
        if low > after:
            ranges.append((after, low - 1))
        after = high + 1
    if after <= LAST:
        ranges.append((after, LAST))
    return tuple(ranges)


def contains(chars: CharSet, char: str) -> bool:
    code = ord(char)
    index = bisect_right(chars, (code, LAST)) - 1
    return index >= 0 and code <= chars[index][1]


def without_case(chars: CharSet) -> CharSet:
    """Return ``chars`` with both cases of each letter, such as ``[Aa]`` for ``[a]``.

    In a range of more than ``_MAX_FOLDED_RANGE`` characters, only ASCII letters get their other case.
    """
    ranges = list(chars)
    for low, high in chars:
        codes = range(low, high + 1) if high - low < _MAX_FOLDED_RANGE else range(max(low, 65), min(high, 122) + 1)
        for code in codes:
            char = chr(code)
            ranges.extend((ord(other),) * 2 for other in (char.lower(), char.upper()) if len(other) == 1)
    return union(ranges)


DIGIT: Final = union([(48, 57)])
WORD: Final = union([(48, 57), (65, 90), (95, 95), (97, 122)])
SPACE: Final = of(" \t\n\r\f\v")
NOT_NEWLINE: Final = complement(of("\n"))
