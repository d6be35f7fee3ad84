"""Check the ranges of numbers."""

import math


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number above 0.

    Raises:
        ValueError: ``value`` is not finite, or not above 0.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, not {value!r}")
    return value


def not_negative(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number of at least 0.

    Raises:
        ValueError: ``value`` is not finite, or is below 0.
    """
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
    return value


def fraction(name: str, value: float) -> float:
    """Return ``value`` if it is within 0 and 1, both included.

    Raises:
        ValueError: ``value`` is below 0 or above 1.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value!r}")
    return value


def whole(name: str, value: float, *, least: int = 0) -> int:
    """Return ``value`` if it is a whole number of at least ``least``.

    Raises:
        ValueError: ``value`` is not a whole number, or is below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
