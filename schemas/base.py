"""The base classes of events, and field types that limit a length or a range."""

from typing import Annotated, Protocol, TypedDict

import msgspec
from msgspec import Meta

UUID7_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

# In a regular expression, "$" also matches before a final line break. A maximum length or a look-ahead excludes that.
RequestId = Annotated[str, Meta(pattern=UUID7_PATTERN, max_length=36, description="UUIDv7, lower case.")]
Tenant = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$(?!\n)", description="Who pays, and whose policy applies.")
]
AtUs = Annotated[int, Meta(ge=0, le=2**53, description="Microseconds since the epoch.")]
Source = Annotated[str, Meta(min_length=1, max_length=128, description="Service and instance.")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Ms = Annotated[float, Meta(ge=0, le=2**53, description="Milliseconds.")]  # finite in microseconds, too
MAX_ATTEMPT = 100
Attempt = Annotated[int, Meta(ge=1, le=MAX_ATTEMPT, description="1 is the self-hosted engine's first try.")]
RunId = Annotated[str, Meta(min_length=1, max_length=64, description="Unique per execution of an attempt.")]
ShortText = Annotated[str, Meta(max_length=2_000)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class AnyEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base class of all events. ``schemas.registry`` lists the classes that are written to Kafka."""


class Event(AnyEvent, frozen=True, kw_only=True):
    """Something that happened to one request.

    Attributes:
        request_id: Id of the request (UUIDv7). It is also the record's key.
        tenant: The tenant that pays for the request and whose policy applies.
        at: Time at which the event was written, in microseconds since the epoch, by the writer's clock.
        source: Service and instance that wrote the event, such as ``generator/1f3a``.
    """

    request_id: RequestId
    tenant: Tenant
    at: AtUs
    source: Source


class Envelope(TypedDict):
    request_id: RequestId
    tenant: Tenant
    at: AtUs
    source: Source


class RunEnvelope(Envelope):
    attempt: Attempt
    run: RunId


class RequestRef(Protocol):
    @property
    def request_id(self) -> str: ...

    @property
    def tenant(self) -> str: ...


class RunRef(RequestRef, Protocol):
    @property
    def attempt(self) -> int: ...

    @property
    def run(self) -> str: ...


def envelope(about: RequestRef, *, at: int, source: str) -> Envelope:
    """Return the fields that all events about a request have in common, as keyword arguments."""
    return {"request_id": about.request_id, "tenant": about.tenant, "at": at, "source": source}


def run_envelope(about: RunRef, *, at: int, source: str) -> RunEnvelope:
    """Return the fields that all events about a run have in common, as keyword arguments."""
    return {**envelope(about, at=at, source=source), "attempt": about.attempt, "run": about.run}
