"""Dead letters: what could not be read, kept as it was; and the end of a request that nobody could read. Pure."""

import base64
from typing import Final

import msgspec
import orjson

from schemas.base import Tenant
from schemas.books import DeadLetter
from schemas.errors import MalformedEvent, UnknownKind
from schemas.ids import is_uuid7
from schemas.registry import KINDS
from schemas.stream import Closed
from schemas.wire import KIND_HEADER, TRACE_HEADER, VERSION_HEADER, key_of
from services.bus import Received, Unread

MAX_VALUE: Final = 600_000
"""Bytes of a value that a dead letter keeps: base64 and the rest stay below what one event may hold."""

MAX_EXTRA: Final = 30_000
"""Bytes of the key, and of all headers together."""

UNKNOWN_TENANT: Final = "unknown"


def dead_letter(unread: Unread, now_us: int, source: str) -> DeadLetter:
    """The record as it was. What is too long is cut, and the letter says so; the original stays where it was."""
    value, key = unread.value, unread.key
    headers = _headers(unread)
    notes = [str(unread.error)[:1_800]]
    if value is not None and len(value) > MAX_VALUE:
        notes.append(f"(first {MAX_VALUE} of {len(value)} bytes kept)")
    if key is not None and len(key) > MAX_EXTRA:
        notes.append(f"(first {MAX_EXTRA} of {len(key)} key bytes kept)")
    if len(headers) < len(unread.headers):
        notes.append(f"(first {len(headers)} of {len(unread.headers)} headers kept)")
    return DeadLetter(
        at=now_us,
        source=source,
        topic=unread.topic,
        partition=unread.partition,
        offset=unread.offset,
        reason=" ".join(notes),
        key_b64=None if key is None else _base64(key[:MAX_EXTRA]),
        value_b64=None if value is None else _base64(value[:MAX_VALUE]),
        headers=headers,
        cut=len(notes) > 1,
    )


def rejection(unread: Unread, now_us: int, source: str) -> Closed | None:
    """The end of the request in an unreadable ``Request`` record, if its id can be read from the key or the value.

    None as well for an event of a kind that nobody here knows: it need not be the question itself.
    """
    if isinstance(unread.error, UnknownKind):
        return None
    fields = _fields(unread.value)
    key = (unread.key or b"").decode("ascii", "replace")
    candidates = (key, fields.get("request_id"))
    request_id = next((text for text in candidates if isinstance(text, str) and is_uuid7(text)), None)
    if request_id is None:
        return None
    try:
        tenant = msgspec.convert(fields.get("tenant"), Tenant)
    except msgspec.ValidationError:
        tenant = UNKNOWN_TENANT
    reason = f"the request could not be read: {unread.error}"[:2_000]
    return Closed(
        request_id=request_id, tenant=tenant, at=now_us, source=source, outcome="rejected", reason=reason,
        cause="unreadable",
    )  # fmt: skip


def misplaced(item: Received, belongs: int) -> Unread:
    """A readable event in a partition that is not its request's: nobody will look for it there."""
    reason = (
        f"{type(item.event).__name__} stands in partition {item.partition}, but its request_id belongs to"
        f" {belongs}: write with Kafka's default partitioner (murmur2 of the key)"
    )
    return _as_unread(item, reason)


def stray(item: Received) -> Unread:
    """A readable event on a topic that is not for its kind."""
    return _as_unread(item, f"{type(item.event).__name__} has no place on {item.topic}")


def _as_unread(item: Received, reason: str) -> Unread:
    name = type(item.event).__name__
    headers = [(KIND_HEADER, name.encode()), (VERSION_HEADER, b"%d" % KINDS[name].version)]
    if item.traceparent is not None:
        headers.append((TRACE_HEADER, item.traceparent.encode()))
    at = (item.topic, item.partition, item.offset, item.timestamp_ms)
    return Unread(*at, key_of(item.event), orjson.dumps(item.event), tuple(headers), MalformedEvent(reason))


def _fields(value: bytes | None) -> dict[str, object]:
    try:
        fields = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _headers(unread: Unread) -> tuple[tuple[str, str], ...]:
    kept: list[tuple[str, str]] = []
    size = 0
    for name, value in unread.headers:
        size += len(name) + len(value or b"")
        if size > MAX_EXTRA:
            break
        kept.append((name, _base64(value or b"")))
    return tuple(kept)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
