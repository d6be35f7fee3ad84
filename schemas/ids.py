"""Request ids. They are UUIDv7 (RFC 9562, section 5.7) and contain their time of creation."""

import re
import uuid

from schemas.base import UUID7_PATTERN

_UUID7 = re.compile(UUID7_PATTERN)


def uuid7(now_ms: int, random_bits: int) -> str:
    """Return a UUIDv7 that contains ``now_ms`` (milliseconds since the epoch) and ``random_bits`` (74 bits)."""
    rand_a = random_bits >> 62 & 0xFFF
    rand_b = random_bits & (1 << 62) - 1
    value = (now_ms & (1 << 48) - 1) << 80 | 7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b
    return str(uuid.UUID(int=value))


def is_uuid7(text: str) -> bool:
    """Return whether the text is a UUIDv7 in the canonical lower-case form."""
    return _UUID7.fullmatch(text) is not None


def time_ms(request_id: str) -> int:
    """Return the time at which the id was created, in milliseconds since the epoch."""
    return int(request_id[:8] + request_id[9:13], 16)
