"""Build a dead letter for each record that the router cannot read. No I/O, no clock.

For an unreadable request, also build the ``Closed`` event that rejects it.
"""

import base64
from typing import Final

import msgspec
import orjson

from schemas.base import Tenant
from schemas.errors import MalformedEvent, UnknownKind
from schemas.ids import is_uuid7
from schemas.registry import KINDS
from schemas.side_events import DeadLetter
from schemas.stream import Closed
from schemas.wire import KIND_HEADER, TRACE_HEADER, VERSION_HEADER, key_of
from services.bus import Received, UnreadableRecord

MAX_VALUE: Final = 600_000
"""Maximum number of bytes of a record's value in a dead letter.

With a value of this size, encoded as base64, a dead letter is still smaller than the size limit of an event.
"""

MAX_EXTRA: Final = 30_000
"""Maximum number of bytes of the key in a dead letter, and of the JSON of all headers together."""

UNKNOWN_TENANT: Final = "unknown"


def dead_letter(unread: UnreadableRecord, now_us: int, source: str) -> DeadLetter:
    """Return a dead letter with a copy of the record. If a field is too long, it is cut, and ``reason`` says so."""
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


def rejection(unread: UnreadableRecord, now_us: int, source: str) -> Closed | None:
    """Return the ``Closed`` that rejects an unreadable request.

    Return None if the record has no valid request id, or if its kind of event is unknown.
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


def unread_record(letter: DeadLetter, log_ms: int) -> UnreadableRecord | None:
    """Return the record that a dead letter describes; None if the letter's bytes are invalid.

    The letter was appended at ``log_ms``.
    """
    try:
        key, value = (None if text is None else base64.b64decode(text) for text in (letter.key_b64, letter.value_b64))
        headers = tuple((name, base64.b64decode(text)) for name, text in letter.headers)
    except ValueError:
        return None
    kind = dict(headers).get(KIND_HEADER)
    is_unknown = kind is not None and kind.decode("utf-8", "replace") not in KINDS
    error = UnknownKind(letter.reason) if is_unknown else MalformedEvent(letter.reason)
    return UnreadableRecord(letter.topic, letter.partition, letter.offset, log_ms, key, value, headers, error)


def wrong_partition(item: Received, belongs: int) -> UnreadableRecord:
    """Convert an event in a wrong partition to an ``UnreadableRecord``. ``belongs`` is the right partition."""
    reason = (
        f"{type(item.event).__name__} is in partition {item.partition}, but its request_id belongs to"
        f" {belongs}: write with Kafka's default partitioner (murmur2 of the key)"
    )
    return _as_unread(item, reason)


def wrong_topic(item: Received) -> UnreadableRecord:
    return _as_unread(item, f"{type(item.event).__name__} has no place on {item.topic}")


def _as_unread(item: Received, reason: str) -> UnreadableRecord:
    name = type(item.event).__name__
    headers = [(KIND_HEADER, name.encode()), (VERSION_HEADER, b"%d" % KINDS[name].version)]
    if item.traceparent is not None:
        headers.append((TRACE_HEADER, item.traceparent.encode()))
    at = (item.topic, item.partition, item.offset, item.timestamp_ms)
    return UnreadableRecord(
        *at, key_of(item.event), msgspec.json.encode(item.event), tuple(headers), MalformedEvent(reason)
    )


def _fields(value: bytes | None) -> dict[str, object]:
    try:
        fields = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _headers(unread: UnreadableRecord) -> tuple[tuple[str, str], ...]:
    kept: list[tuple[str, str]] = []
    size = 0
    for name, value in unread.headers:
        header = (name, _base64(value or b""))
        size += len(msgspec.json.encode(header)) + 1  # a comma
        if size > MAX_EXTRA:
            break
        kept.append(header)
    return tuple(kept)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
