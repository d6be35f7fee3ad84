"""Which partitions an edge follows and why, and request ids that live in its home partitions. No I/O, no clock."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from schemas.ids import uuid7

MAX_TRIES: Final = 512
"""With one home in 32 partitions a miss has a chance of 1 in 10 million; the answer then is 'not ready'."""


class FollowPlan:
    """The partitions that are followed, and what each is needed for.

    ``homes`` are always followed, so that a stream in one misses nothing. What is followed stays followed while it is
    home, is to become home, or is held by a stream.

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
        """Set the next homes; the old ones stay until ``settle``."""
        self._wanted = wanted

    def missing(self) -> frozenset[int]:
        """The next homes that are not followed yet."""
        return self._wanted - self.followed

    def settle(self) -> bool:
        """Switch to the next homes if all of them are followed; return whether the homes changed."""
        if self._retired or self.homes == self._wanted or self.missing():
            return False
        self.homes = self._wanted
        return True

    def retire(self) -> None:
        """Have no homes from now on."""
        self._retired = True
        self.homes = frozenset()

    def hold(self, partition: int) -> None:
        """Keep the partition followed, once it is, until as many calls of ``release``."""
        self._holds[partition] += 1

    def release(self, partition: int) -> None:
        """Undo one ``hold``."""
        self._holds[partition] -= 1
        if not self._holds[partition]:
            del self._holds[partition]

    def unneeded(self) -> frozenset[int]:
        """The partitions that are followed for nothing."""
        return frozenset(self.followed - self.homes - self._wanted - self._holds.keys())


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
