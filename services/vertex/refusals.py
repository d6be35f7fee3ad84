"""Google's errors in our words, and whether to ask again. Pure; no text of prompt or server comes through."""

import re
from typing import Any, Final, NamedTuple

from schemas.stream import ErrorClass
from services.worker.engine import EngineError

TRIES: Final = 4
"""Most requests for one answer; only before its first text, and only within its deadline."""

FIRST_WAIT_US: Final = 250_000
"""Wait before the second try when the server names none; doubled each time."""

_SECONDS: Final = re.compile(r"(\d{1,6}(?:\.\d{1,9})?)s?")


class Meaning(NamedTuple):
    """What an HTTP status means.

    Attributes:
        error_class: As in ``Failed``.
        retryable: Whether another attempt could help.
        again: Whether the same server should be asked again.
    """

    error_class: ErrorClass
    retryable: bool
    again: bool


def meaning(status: int) -> Meaning:
    """By Google's API error codes."""
    match status:
        case 429:
            return Meaning("overloaded", retryable=True, again=True)
        case 401 | 403:
            return Meaning("auth", retryable=False, again=False)
        case 408 | 504:
            return Meaning("timeout", retryable=True, again=False)
        case 502 | 503:
            return Meaning("unavailable", retryable=True, again=True)
        case _ if 400 <= status < 500:
            return Meaning("bad_request", retryable=False, again=False)
        case _:
            return Meaning("internal", retryable=True, again=False)


def refusal(status: int) -> EngineError:
    """An HTTP status as the engine's error."""
    said = meaning(status)
    hint = ""
    if said.error_class == "auth":
        hint = ": check the credentials' role (roles/aiplatform.user) and the project"
    elif status == 404:
        hint = ": check RAILBUS_VERTEX_MODEL and RAILBUS_VERTEX_LOCATION"
    return EngineError(said.error_class, f"Vertex AI answered {status}{hint}", retryable=said.retryable)


def wait_us(tries: int, headers: Any, details: Any, now_us: int, expires_us: int) -> int | None:
    """How long to wait before the next try, in microseconds; None when there is no time for one.

    Args:
        tries: Requests made so far.
        headers: Of the refusal; ``Retry-After`` in seconds counts.
        details: The refusal's body; ``google.rpc.RetryInfo`` counts where there is no header.
        now_us: Microseconds since the epoch.
        expires_us: When the request must be closed.
    """
    if tries >= TRIES:
        return None
    asked = _seconds(headers.get("Retry-After") if hasattr(headers, "get") else None)
    if asked is None:
        asked = _retry_delay(details)
    wait = FIRST_WAIT_US << (tries - 1) if asked is None else int(asked * 1e6)
    return wait if now_us + wait < expires_us else None


def _retry_delay(details: Any) -> float | None:
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
