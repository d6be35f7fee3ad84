"""Which partitions an edge follows and why, and request ids that hash into its home partitions. No I/O, no clock."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from schemas.ids import uuid7

MAX_TRIES: Final = 512
"""Maximum number of ids tried. With one home in 32 partitions, 1 in 10 million requests fails all and gets 503."""


class FollowPlan:
    """The partitions that an edge follows, and the reason for each.

    ``homes`` are always followed, so that a stream in one misses no event. A followed partition stays followed while it
    is a home, is about to become one, or is held by a stream.

    Attributes:
        homes: Partitions for new requests.
        followed: Partitions that are being read.
    """

    def __init__(self) -> None:
        self.homes: frozenset[int] = frozenset()
        self.followed: set[int] = set()
        self._wanted: frozenset[int] = frozenset()
        self._holds: Counter[int] = Counter()
        self._retired = False

    def assign(self, wanted: frozenset[int]) -> None:
        """Set the next homes; the old ones stay until ``switch_homes``."""
        self._wanted = wanted

    def missing(self) -> frozenset[int]:
        """Return the next home partitions that are not followed yet."""
        return self._wanted - self.followed

    def switch_homes(self) -> bool:
        """Switch to the next homes if all of them are followed; return whether the homes changed."""
        if self._retired or self.homes == self._wanted or self.missing():
            return False
        self.homes = self._wanted
        return True

    def retire(self) -> None:
        """Give up all homes, for good."""
        self._retired = True
        self.homes = frozenset()

    def hold(self, partition: int) -> None:
        """Keep the partition followed until each ``hold`` has had its ``release``."""
        self._holds[partition] += 1

    def release(self, partition: int) -> None:
        """Undo one ``hold``."""
        self._holds[partition] -= 1
        if not self._holds[partition]:
            del self._holds[partition]

    def unneeded(self) -> frozenset[int]:
        """Return the followed partitions that need not be followed any more."""
        return frozenset(self.followed - self.homes - self._wanted - self._holds.keys())


def new_local_request_id(
    homes: frozenset[int], *, partition_of: Callable[[str], int], now_ms: int, random_bits: Callable[[], int]
) -> str | None:
    """Create a request id (UUIDv7) that hashes into a home partition; return None without a home or after MAX_TRIES.

    Args:
        homes: Partitions that are being followed.
        partition_of: The partitioner.
        now_ms: Milliseconds since the epoch.
        random_bits: Returns 74 random bits.
    """
    if not homes:
        return None
    for _ in range(MAX_TRIES):
        request_id = uuid7(now_ms, random_bits())
        if partition_of(request_id) in homes:
            return request_id
    return None


def home_partitions_for(assigned: frozenset[int], instance: str, partitions: int) -> frozenset[int]:
    """Return the assigned partitions; if there are none, one partition of another instance, to share."""
    return assigned or frozenset({fnv1a_32(instance) % partitions})


def fnv1a_32(text: str) -> int:
    """Hash with 32-bit FNV-1a: the same in every process, unlike the built-in hash."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
