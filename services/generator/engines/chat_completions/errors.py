"""Convert the errors of a server to ``EngineError``.

Only numbers and identifiers are copied from the server's messages, because a message may contain the prompt.
"""

import re
from typing import Any, Final

import msgspec

from schemas.stream import ErrorClass
from services.worker.engine import EngineError

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LIMIT: Final = re.compile(r"maximum (?:context|model) length (?:is|of) (\d{1,12})\b", re.IGNORECASE)
_ASKED: Final = re.compile(r"\b(\d{1,12}) (?:\w+ )?tokens\b", re.IGNORECASE)

# The boolean is True if another attempt could succeed. A wrong request fails in each attempt.
_CLASSES: Final[dict[int, tuple[ErrorClass, bool]]] = {
    401: ("auth", True), 403: ("auth", True), 407: ("auth", True), 408: ("timeout", True), 425: ("overloaded", True),
    429: ("overloaded", True), 503: ("unavailable", True), 504: ("timeout", True), 529: ("overloaded", True),
}  # fmt: skip


def classify(status: int) -> tuple[ErrorClass, bool]:
    """Return the error class of an HTTP status other than 200, and whether another attempt could succeed."""
    known = _CLASSES.get(status)
    if known is not None:
        return known
    if 400 <= status < 500:
        return "bad_request", False
    return ("unavailable" if status >= 500 else "internal"), True


def upstream_error(status: int | None, body: bytes) -> EngineError:
    """Convert an error response to an ``EngineError``.

    Args:
        status: The HTTP status; None if the error came inside a stream.
        body: The body of the response, or the data of the server-sent event that reports the error.
    """
    error = _error_object(body)
    if status is None:
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
    error_class, retryable = classify(status)
    return EngineError(error_class, _message(status, error), retryable=retryable)


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        # Some servers put the error object into a field ``error``, and some send it as the whole body.
        value = value["error"]
    return value if isinstance(value, dict) else {}


def _message(status: int, error: dict[str, Any]) -> str:
    asked, limit = _lengths(error)
    if limit is not None:
        length = "" if asked is None else f"{asked} tokens, "
        return f"the prompt is too long: {length}the limit is {limit} tokens"
    if 300 <= status < 400:
        return (
            f"the upstream answered {status}: redirects are not followed; set RAILBUS_UPSTREAM_URL to the new address"
        )
    kind = error.get("type") or error.get("code")
    named = f" ({kind})" if isinstance(kind, str) and _IDENTIFIER.fullmatch(kind) else ""
    return f"the upstream answered {status}{named}"


def _lengths(error: dict[str, Any]) -> tuple[int | None, int | None]:
    # The results are the number of tokens that the request needs, and the model's limit.
    if error.get("type") == "exceed_context_size_error":
        asked, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
        return (asked if isinstance(asked, int) else None), (limit if isinstance(limit, int) else None)
    message = error.get("message")
    if not isinstance(message, str) or (limit_found := _LIMIT.search(message)) is None:
        return None, None
    limit = int(limit_found.group(1))
    asked_for = max((int(number) for number in _ASKED.findall(message[limit_found.end() :])), default=0)
    return (asked_for if asked_for > limit else None), limit
