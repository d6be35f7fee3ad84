"""Upstream's errors in our words.

Its messages may repeat the prompt, so only numbers and identifiers are taken from them.
"""

import re
from typing import Any, Final

import msgspec

from schemas.stream import ErrorClass
from services.worker.engine import EngineError

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LIMIT: Final = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)", re.IGNORECASE)
_ASKED: Final = re.compile(r"\b(\d{1,12}) (?:\w+ )?tokens\b", re.IGNORECASE)

# Whether another attempt, perhaps elsewhere, could help: not when the request itself is at fault.
_CLASSES: Final[dict[int, tuple[ErrorClass, bool]]] = {
    401: ("auth", True), 403: ("auth", True), 407: ("auth", True), 408: ("timeout", True), 425: ("overloaded", True),
    429: ("overloaded", True), 503: ("unavailable", True), 504: ("timeout", True), 529: ("overloaded", True),
}  # fmt: skip


def classify(status: int) -> tuple[ErrorClass, bool]:
    """Error class of an HTTP status other than 200, and whether another attempt could help."""
    known = _CLASSES.get(status)
    if known is not None:
        return known
    if 400 <= status < 500:
        return "bad_request", False
    return ("unavailable" if status >= 500 else "internal"), True


def refusal(status: int | None, body: bytes) -> EngineError:
    """The error that a body reports; ``status`` is None when it came in the middle of a stream that began with 200."""
    told = _told(body)
    if status is None:
        code = told.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
    error_class, retryable = classify(status)
    return EngineError(error_class, _sentence(status, told), retryable=retryable)


def _told(body: bytes) -> dict[str, Any]:
    """The error object of OpenAI, vLLM or llama.cpp; empty when there is none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        value = value["error"]
    return value if isinstance(value, dict) else {}


def _sentence(status: int, told: dict[str, Any]) -> str:
    asked, limit = _lengths(told)
    if limit is not None:
        length = "" if asked is None else f"{asked} tokens, "
        return f"the prompt is too long: {length}the limit is {limit} tokens"
    if 300 <= status < 400:
        return f"the upstream answered {status}: redirects are not followed, set RAILBUS_UPSTREAM_URL to where it is"
    kind = told.get("type") or told.get("code")
    named = f" ({kind})" if isinstance(kind, str) and _IDENTIFIER.fullmatch(kind) else ""
    return f"the upstream answered {status}{named}"


def _lengths(told: dict[str, Any]) -> tuple[int | None, int | None]:
    """Tokens asked for and the model's limit, when the error is about them."""
    if told.get("type") == "exceed_context_size_error":
        asked, limit = told.get("n_prompt_tokens"), told.get("n_ctx")
        return (asked if isinstance(asked, int) else None), (limit if isinstance(limit, int) else None)
    message = told.get("message")
    if not isinstance(message, str) or (limit_found := _LIMIT.search(message)) is None:
        return None, None
    limit = int(limit_found.group(1))
    asked_for = max((int(number) for number in _ASKED.findall(message[limit_found.end() :])), default=0)
    return (asked_for if asked_for > limit else None), limit
