"""Who comes, with what, and what they find."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from schemas.books import Transport
from schemas.errors import MalformedEvent
from schemas.requests import Request
from services.bus import Position
from services.edge.errors import ApiError
from services.edge.session import Session, Writer
from services.edge.subscription import Subscription

Format = Callable[[Session, Request], Writer]
"""Makes the writer for a client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who asks, and how the answer is wanted.

    Attributes:
        tenant: Who pays.
        transport: How the client is connected.
        format: What it reads.
        until_closed: Whether it wants to hear of the request's end, or of the answer's.
    """

    tenant: str
    transport: Transport
    format: Format
    until_closed: bool = False


def hash_of_request(request: Request) -> str:
    """What makes two bodies the same; the id and the time do not."""
    asked = (request.model, request.messages, request.sampling, request.lane, request.delivery, request.deadlines)
    return hashlib.sha256(repr((asked, request.fallback, request.egress)).encode()).hexdigest()


def refusal_of(error: Exception) -> ApiError:
    """Why the log does not take a request."""
    if isinstance(error, MalformedEvent):
        return ApiError(413, "The request is larger than the log takes: 1,000,000 bytes.", code="request_too_large")
    return ApiError(503, "The log takes no requests now.", code="log_unavailable", retry_after_s=2)


def on_accepted(stream: Subscription, accepted: asyncio.Future[Position]) -> None:
    """The log took the request, or never will."""
    if not accepted.cancelled() and accepted.exception() is not None:
        stream.end("error", ApiError(503, "The log did not take the request.", code="log_unavailable", retry_after_s=2))
