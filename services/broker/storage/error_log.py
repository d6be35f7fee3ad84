"""Write storage errors to the process's log, at a limited rate."""

import logging
import time
from typing import Final, Literal

from services.runtime.errors import DISK_FULL

logger = logging.getLogger("railbus.broker")

# On a full disk, every write fails, many times a second.
REPEAT_S: Final = 60.0
"""Minimum time between two log lines about storage errors, in seconds."""

STORAGE_FAILED: Final = "The data directory cannot be written; see the broker's log."
"""Message to the client, where the response has room for one."""


class StorageErrorLog:
    """Limits log lines about storage errors to one a minute.

    If errors were left out, the next line says how many.
    """

    def __init__(self) -> None:
        self._logged_at_s: float | None = None
        self._suppressed = 0

    def line_for(
        self, what: str, error: OSError, now_s: float, action: Literal["written", "read"] = "written"
    ) -> str | None:
        if self._logged_at_s is not None and now_s - self._logged_at_s < REPEAT_S:
            self._suppressed += 1
            return None
        more = f"; {self._suppressed} more such errors since the last line" if self._suppressed else ""
        self._logged_at_s, self._suppressed = now_s, 0
        remedy = ": free some space on its disk" if error.errno in DISK_FULL else ""
        return f"{what}: the data directory cannot be {action} ({error.strerror or error}){remedy}{more}"


_errors = StorageErrorLog()


def log_storage_error(what: str, error: OSError, action: Literal["written", "read"] = "written") -> None:
    """Log a storage error. If another one was logged within the last minute, only count the error."""
    line = _errors.line_for(what, error, time.monotonic(), action)
    if line is not None:
        logger.error("%s", line)
