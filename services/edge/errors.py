"""Errors for clients, in the JSON format of OpenAI's API."""

from typing import Final

import orjson

from schemas.stream import ErrorClass, Failed, Outcome
from services.stream import Close

CODES_OF_FAILURES: Final[dict[ErrorClass, tuple[int, str]]] = {
    "unavailable": (503, "engine_unavailable"),
    "overloaded": (503, "engine_overloaded"),
    "timeout": (504, "engine_timeout"),
    "bad_request": (400, "bad_request"),
    "auth": (502, "engine_auth"),
    "safety_block": (400, "safety_block"),
    "engine_dead": (502, "engine_dead"),
    "cancelled": (499, "cancelled"),
    "internal": (500, "internal"),
}

_CODES_OF_OUTCOMES: Final[dict[Outcome, tuple[int, str]]] = {
    "failed": (502, "failed"),
    "expired": (504, "expired"),
    "cancelled": (499, "cancelled"),
    "rejected": (400, "rejected"),
}


class ApiError(Exception):
    """An error that is sent to a client.

    Attributes:
        message: What is wrong and what the client can do. It never contains text of a prompt.
        code: A code for programs, one of ``services.edge.error_codes.ERROR_CODES``.
        param: The wrong field of the body, such as ``messages[0].role``, or the wrong header or parameter; None if
            there is none.
        retry_after_s: Seconds after which the client should try again; None if not known.
    """

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def body(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    @property
    def envelope(self) -> bytes:
        return orjson.dumps({"error": self.body})


def error_for_close(close: Close, failure: Failed | None) -> ApiError | None:
    known = _CODES_OF_OUTCOMES.get(close.outcome)
    if known is None:
        return None
    if close.outcome == "failed" and failure is not None:
        return error_for_failure(failure)
    status, code = known
    return ApiError(status, close.reason or f"The request was closed: {close.outcome}.", code=code)


def error_for_failure(failure: Failed) -> ApiError:
    status, code = CODES_OF_FAILURES[failure.error_class]
    param = failure.param if failure.error_class == "bad_request" else None
    if param == "model":
        status, code = 404, "model_not_found"
    retry = 1 if failure.retryable and status >= 500 else None
    message = failure.message or f"The engine failed: {code}."
    return ApiError(status, message, code=code, param=param, retry_after_s=retry)
