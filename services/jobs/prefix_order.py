"""Order prompts so that prompts with a common prefix are neighbours and profit from the prefix cache."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

LEVELS: Final = tuple(sorted({int(256 * 1.25**step) for step in range(23)}))
"""Lengths of the prefixes that are compared, in characters: 256 to about 34,000."""

WIDTH: Final = 4
"""Length of the hash of a prefix, in bytes. The only effect of a collision is that two lines without a common prefix
become neighbours."""


def prefix_key(texts: Iterable[str]) -> bytes:
    """Return a sort key of a prompt. Prompts with a common prefix have keys with a common prefix.

    ``texts`` are the parts of the prompt. A short prompt has a short key, because a job may have millions of them.
    """
    text = "\x00".join(texts)
    hasher, parts, done = hashlib.blake2b(digest_size=WIDTH), [], 0
    for level in LEVELS:
        hasher.update(text[done:level].encode("utf-8", "surrogatepass"))
        parts.append(hasher.copy().digest())
        if level >= len(text):
            break
        done = level
    return b"".join(parts)


def prefix_order(keys: Sequence[bytes]) -> list[int]:
    """Return the indices of ``keys``, ordered so that keys with a common prefix are neighbours."""
    ranked = sorted(range(len(keys)), key=keys.__getitem__)
    found: list[int] = []
    waiting = [(0, len(ranked), 0)] if ranked else []  # ranges of keys with an equal prefix; the last one is next
    while waiting:
        low, high, depth = waiting.pop()
        if high - low == 1 or depth * WIDTH >= len(keys[ranked[high - 1]]):  # none of them is longer than the last one
            found += sorted(ranked[low:high])
            continue
        # All keys of the range have this number of leading hashes in common.
        deeper = _common(keys[ranked[low]], keys[ranked[high - 1]], depth)
        if deeper > depth:
            waiting.append((low, high, deeper))
            continue
        runs = sorted(_runs(keys, ranked, low, high, depth), key=lambda run: min(ranked[run[0] : run[1]]), reverse=True)
        waiting += [(begin, end, depth + 1) for begin, end in runs]
    return found


def _common(first: bytes, last: bytes, depth: int) -> int:
    while depth * WIDTH < len(first) and first[: (depth + 1) * WIDTH] == last[: (depth + 1) * WIDTH]:
        depth += 1
    return depth


def _runs(keys: Sequence[bytes], ranked: Sequence[int], low: int, high: int, depth: int) -> Iterator[tuple[int, int]]:
    begin, end = depth * WIDTH, (depth + 1) * WIDTH
    cuts = [
        place for place in range(low + 1, high) if keys[ranked[place]][begin:end] != keys[ranked[place - 1]][begin:end]
    ]
    return pairwise([low, *cuts, high])
