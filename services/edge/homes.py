"""Which partitions this edge reads anyway, and request ids that live there."""

from collections.abc import Callable

from schemas.ids import uuid7

MAX_TRIES = 512
"""With one home in 32 partitions a miss has a chance of 1 in 10 million; the answer then is 'not ready'."""


def id_at_home(
    homes: frozenset[int], *, partition_of: Callable[[str], int], now_ms: int, random_bits: Callable[[], int]
) -> str | None:
    """A new request id (UUIDv7) whose records fall into a home partition; None after too many tries or without a home.

    Args:
        homes: Partitions that are being followed.
        partition_of: The partitioner.
        now_ms: Milliseconds since the epoch.
        random_bits: Gives 74 random bits.
    """
    if not homes:
        return None
    for _ in range(MAX_TRIES):
        request_id = uuid7(now_ms, random_bits())
        if partition_of(request_id) in homes:
            return request_id
    return None


def homes_of(assigned: frozenset[int], instance: str, partitions: int) -> frozenset[int]:
    """The partitions dealt to this instance; one of the others' when there are more instances than partitions."""
    return assigned or frozenset({hash_of(instance) % partitions})


def hash_of(text: str) -> int:
    """FNV-1a, 32 bits: the same in every process, unlike the built-in hash."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
