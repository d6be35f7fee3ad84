"""What every event has in common, and the bounds that make a field's type."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

UUID7_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

# A pattern's "$" also matches before a last line break: a length or a look-ahead keeps that out.
RequestId = Annotated[str, Meta(pattern=UUID7_PATTERN, max_length=36, description="UUIDv7, lower case.")]
Tenant = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$(?!\n)", description="Who pays and whose policy holds.")]
AtUs = Annotated[int, Meta(ge=0, le=2**53, description="Microseconds since the epoch.")]
Source = Annotated[str, Meta(min_length=1, max_length=128, description="Service and instance.")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Ms = Annotated[float, Meta(ge=0, description="Milliseconds.")]
Attempt = Annotated[int, Meta(ge=1, le=100, description="1 is the self-hosted engine's first try.")]
Run = Annotated[str, Meta(min_length=1, max_length=64, description="Unique per execution of an attempt.")]
ShortText = Annotated[str, Meta(max_length=2_000)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to one request.

    Attributes:
        request_id: The request it is about (UUIDv7); also the record's key.
        tenant: Who pays and whose policy holds.
        at: When it was written, in microseconds since the epoch, by the writer's clock.
        source: Service and instance that wrote it, such as ``generator/1f3a``.
    """

    request_id: RequestId
    tenant: Tenant
    at: AtUs
    source: Source
