"""Check whether numbers are in the allowed range."""

import math
from typing import Final

MOST: Final = 10**9
"""Usual largest whole number. The product of two such numbers still fits into 64 bits."""


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above 0, else raise ``ValueError``."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, not {value!r}")
    return value


def not_negative(name: str, value: float) -> float:
    """Return ``value`` if it is finite and at least 0, else raise ``ValueError``."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
    return value


def fraction(name: str, value: float) -> float:
    """Return ``value`` if it is at least 0 and at most 1, else raise ``ValueError``."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value!r}")
    return value


def whole(name: str, value: float, *, least: int = 0, most: int = MOST) -> int:
    """Return ``value`` if it is a whole number within ``least`` and ``most``, else raise ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}")
    return value
