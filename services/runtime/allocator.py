"""The C library's memory allocator."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's ``mallopt(3)``."""

MMAP_BYTES: Final = 65_536
TRIM_BYTES: Final = 131_072


def return_large_blocks() -> bool:
    """Give large blocks back to the system when they are freed; return whether the allocator can be told so.

    By default, glibc keeps up to 32 MiB blocks for reuse once one was freed, between small ones that pin them: a
    process that got many large messages once stays large.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES))
