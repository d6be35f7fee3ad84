"""Translate Google's errors into engine errors, and decide whether a request is sent again.

The messages of the engine errors contain no text of the prompt or of the server's response.
"""

import re
from typing import Any, Final, NamedTuple

from schemas.stream import ErrorClass
from services.worker.engine import EngineError

MAX_TRIES: Final = 4
"""Maximum number of requests that are sent for one answer."""

FIRST_WAIT_US: Final = 250_000
"""Wait before the first retry, in microseconds, if the server names no wait. It doubles with each further retry."""

_SECONDS: Final = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)s?")


class StatusMeaning(NamedTuple):
    """What an HTTP status of Vertex AI means.

    Attributes:
        error_class: The error class for the event ``Failed``.
        retryable: Whether another attempt, perhaps on another server, could succeed.
        retry_same_server: Whether the attempt that got this status may send its request to Vertex AI again.
    """

    error_class: ErrorClass
    retryable: bool
    retry_same_server: bool


def status_meaning(status: int) -> StatusMeaning:
    match status:
        case 429:
            return StatusMeaning("overloaded", retryable=True, retry_same_server=True)
        case 401 | 403:
            return StatusMeaning("auth", retryable=False, retry_same_server=False)
        case 408 | 504:
            return StatusMeaning("timeout", retryable=True, retry_same_server=False)
        case 502 | 503:
            return StatusMeaning("unavailable", retryable=True, retry_same_server=True)
        case _ if 400 <= status < 500:
            return StatusMeaning("bad_request", retryable=False, retry_same_server=False)
        case _:
            return StatusMeaning("internal", retryable=True, retry_same_server=False)


def status_error(status: int) -> EngineError:
    meaning = status_meaning(status)
    hint = ""
    if meaning.error_class == "auth":
        hint = ": check the credentials' role (roles/aiplatform.user) and the project"
    elif status == 404:
        hint = ": check RAILBUS_VERTEX_MODEL and RAILBUS_VERTEX_LOCATION"
    return EngineError(meaning.error_class, f"Vertex AI answered {status}{hint}", retryable=meaning.retryable)


def retry_wait_us(tries: int, headers: Any, details: Any, now_us: int, expires_us: int) -> int | None:
    """Return the microseconds to wait before the request is sent again, or None if it must not be sent again.

    The server can set the wait with ``Retry-After`` or ``google.rpc.RetryInfo``.
    """
    if tries >= MAX_TRIES:
        return None
    delay_s = _seconds(headers.get("Retry-After") if hasattr(headers, "get") else None)
    if delay_s is None:
        delay_s = _retry_delay_s(details)
    wait = FIRST_WAIT_US << (tries - 1) if delay_s is None else int(delay_s * 1e6)
    return wait if now_us + wait < expires_us else None


def _retry_delay_s(details: Any) -> float | None:
    try:
        kinds = details["error"]["details"]
    except (KeyError, TypeError, IndexError):
        return None
    for each in kinds if isinstance(kinds, list) else ():
        if isinstance(each, dict) and str(each.get("@type", "")).endswith("RetryInfo"):
            return _seconds(each.get("retryDelay"))
    return None


def _seconds(text: Any) -> float | None:
    match = _SECONDS.fullmatch(text) if isinstance(text, str) else None
    return float(match[1]) if match is not None else None
