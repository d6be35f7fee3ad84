"""W3C Trace Context: one trace id follows a request over every hop."""

import re
from functools import lru_cache

TRACEPARENT_PATTERN = r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"

_TRACEPARENT = re.compile(TRACEPARENT_PATTERN)


@lru_cache(maxsize=4_096)
def is_traceparent(text: str) -> bool:
    """Whether the text is a version-00 ``traceparent``; remembered: all events of a request carry the same."""
    return _TRACEPARENT.fullmatch(text) is not None


def traceparent_for(request_id: str, random_bits: int) -> str:
    """A sampled root ``traceparent`` whose trace id is the request's own 128 bits; 64 random bits name the span."""
    span = random_bits & (1 << 64) - 1 or 1
    return f"00-{request_id.replace('-', '')}-{span:016x}-01"
