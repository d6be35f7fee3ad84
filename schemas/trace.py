"""W3C Trace Context. All records of a request have the same trace id."""

import re
from functools import lru_cache
from typing import Final

TRACEPARENT_PATTERN = r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"

LENGTH: Final = 55
"""Number of characters of a ``traceparent`` of version 00."""

_TRACEPARENT = re.compile(TRACEPARENT_PATTERN)


def is_traceparent(text: str) -> bool:
    return read_traceparent(text.encode("ascii", "replace")) is not None


def read_traceparent(value: bytes | None) -> str | None:
    """Return the header's value as text. Return None if it is not a version-00 ``traceparent``."""
    return _read(value) if value is not None and len(value) == LENGTH else None


# Cached, because all records of a request have the same ``traceparent``.
@lru_cache(maxsize=4_096)
def _read(value: bytes) -> str | None:
    text = value.decode("ascii", "replace")
    return text if _TRACEPARENT.fullmatch(text) else None


def traceparent_for(request_id: str, random_bits: int) -> str:
    """Return a sampled root ``traceparent``. Its trace id is the request id, its span id comes from ``random_bits``."""
    span = random_bits & (1 << 64) - 1 or 1
    return f"00-{request_id.replace('-', '')}-{span:016x}-01"
