"""Decide which partitions an edge reads, and create ids of new requests.

An edge puts new requests into its home partitions. It also reads the partitions of its open streams.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from schemas.ids import uuid7

MAX_TRIES: Final = 512
"""Maximum number of ids tried for a request. If 1 of 32 partitions is home, 1 in 10 million requests gets 503."""


class FollowPlan:
    """The partitions of the stream log that an edge reads.

    Attributes:
        homes: The present home partitions.
        followed: The partitions that are being read.
    """

    def __init__(self) -> None:
        self.homes: frozenset[int] = frozenset()
        self.followed: set[int] = set()
        self._wanted: frozenset[int] = frozenset()
        self._holds: Counter[int] = Counter()
        self._retired = False

    def assign(self, wanted: frozenset[int]) -> None:
        """Set the next home partitions. ``switch_homes`` later makes them the present ones."""
        self._wanted = wanted

    def missing(self) -> frozenset[int]:
        return self._wanted - self.followed

    def switch_homes(self) -> bool:
        """Replace the present home partitions by the next ones, if the edge already reads all of the next ones.

        Return whether ``homes`` has changed.
        """
        if self._retired or self.homes == self._wanted or self.missing():
            return False
        self.homes = self._wanted
        return True

    def retire(self) -> None:
        """Give up all home partitions permanently."""
        self._retired = True
        self.homes = frozenset()

    def hold(self, partition: int) -> None:
        """Mark a partition as needed until ``release`` is called. Each call of ``hold`` needs its own ``release``."""
        self._holds[partition] += 1

    def release(self, partition: int) -> None:
        self._holds[partition] -= 1
        if not self._holds[partition]:
            del self._holds[partition]

    def unneeded(self) -> frozenset[int]:
        return frozenset(self.followed - self.homes - self._wanted - self._holds.keys())


def new_local_request_id(
    homes: frozenset[int], *, partition_of: Callable[[str], int], now_ms: int, random_bits: Callable[[], int]
) -> str | None:
    """Create a request id (UUIDv7) whose partition is a home partition. After ``MAX_TRIES`` tries, return None.

    ``random_bits`` returns 74 random bits.
    """
    if not homes:
        return None
    for _ in range(MAX_TRIES):
        request_id = uuid7(now_ms, random_bits())
        if partition_of(request_id) in homes:
            return request_id
    return None


def home_partitions_for(assigned: frozenset[int], instance: str, partitions: int) -> frozenset[int]:
    """Return ``assigned``. If it is empty, return one partition, chosen by a hash of ``instance``."""
    return assigned or frozenset({fnv1a_32(instance) % partitions})


def fnv1a_32(text: str) -> int:
    """Hash a text with 32-bit FNV-1a. Unlike the built-in ``hash``, the result is the same in every process."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
