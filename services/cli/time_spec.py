"""Parse the value of ``--from``, a time at which to start reading the log. Pure functions."""

import re
from datetime import UTC, datetime
from typing import Final, Literal

from services.bus import AtTime

StartPosition = AtTime | Literal["beginning", "end"]

_AGO: Final = re.compile(r"-?([0-9]{1,9})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_time_spec(text: str, now_ms: int) -> StartPosition:
    """Parse ``beginning``, ``end``, ``10m`` (ten minutes before ``now_ms``), or a date and time.

    A date and time without a UTC offset is in local time.

    Raises:
        ValueError: The text is none of these.
    """
    if text == "beginning":
        return "beginning"
    if text == "end":
        return "end"
    if match := _AGO.fullmatch(text):
        return AtTime(max(0, now_ms - int(match[1]) * _UNIT_MS[match[2]]))
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # OverflowError: in UTC, the year would be below 1 or above 9999
        msg = f"{text!r} is no moment: write beginning, end, 10m (ten minutes ago) or 2026-01-31T12:00:00"
        raise ValueError(msg) from None
    return AtTime(max(0, int(moment.timestamp() * 1_000)))
