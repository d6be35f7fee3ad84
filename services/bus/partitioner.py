"""Map a request id to its partition as Kafka's default partitioner does, by the murmur2 hash of the key."""

from functools import lru_cache
from typing import Final

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C  # Kafka's constant; M and R below are MurmurHash2's
_M: Final = 0x5BD1E995
_R: Final = 24


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 (Austin Appleby, public domain) of ``data``, with Kafka's seed."""
    length = len(data)
    whole = length - length % 4
    h = _SEED ^ length
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> _R) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


@lru_cache(maxsize=8_192)
def partition_for(request_id: str, count: int) -> int:
    return (murmur2(request_id.encode()) & 0x7FFFFFFF) % count
