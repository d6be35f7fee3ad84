"""The wire format of records: a JSON object as value, and headers with the kind and version of the event."""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from schemas.base import AnyEvent, Event
from schemas.errors import MalformedEvent, NewerVersion, UnknownKind
from schemas.registry import KINDS, Kind
from schemas.trace import read_traceparent

MAX_EVENT_BYTES: Final = 1_000_000
"""Maximum size of a value that is written or read. It is below the default limit of brokers, which is 1,048,588 bytes
for a record with its headers."""

KIND_HEADER: Final = "kind"
VERSION_HEADER: Final = "v"
TRACE_HEADER: Final = "traceparent"

Headers = Sequence[tuple[str, bytes]]


class RecordKind(NamedTuple):
    """How to read the records of one kind.

    Attributes:
        parse: Function that decodes the value of a record.
        has_id: Whether the record's key must be the event's request id.
    """

    name: str
    parse: Callable[[bytes], AnyEvent]
    has_id: bool


_RECORD_KINDS: Final = {
    name: RecordKind(name, msgspec.json.Decoder(kind.cls).decode, issubclass(kind.cls, Event))
    for name, kind in KINDS.items()
}
_KNOWN: Final = {
    (name.encode(), b"%d" % version): _RECORD_KINDS[name]
    for name, kind in KINDS.items()
    for version in range(1, kind.version + 1)
}
"""Every kind of record that can be read, by the values of the kind header and the version header."""

_WRONG_VALUE: Final = re.compile(r"(Invalid enum value) (['\"]).*\2", re.DOTALL)
"""The only message of msgspec that repeats a value. The value may be a prompt in the wrong field."""

_encode: Final = msgspec.json.Encoder().encode

_KIND_BYTES: Final = {kind.cls: (name.encode(), b"%d" % kind.version) for name, kind in KINDS.items()}


def encode(event: AnyEvent, traceparent: str | None = None) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Return the value and the headers of an event's record.

    Raises:
        MalformedEvent: If the value is larger than ``MAX_EVENT_BYTES``.
    """
    value = _encode(event)
    if len(value) > MAX_EVENT_BYTES:
        msg = f"{type(event).__name__} is {len(value)} bytes; the limit is {MAX_EVENT_BYTES}: shorten its texts"
        raise MalformedEvent(msg)
    kind, version = _KIND_BYTES[type(event)]
    headers = [(KIND_HEADER, kind), (VERSION_HEADER, version)]
    if traceparent is not None:
        headers.append((TRACE_HEADER, traceparent.encode()))
    return value, headers


def key_of(event: AnyEvent) -> bytes | None:
    """Return the key of the event's record; None if events of this kind have no key."""
    if isinstance(event, Event):
        return event.request_id.encode()
    field = KINDS[type(event).__name__].key
    return None if field == "none" else str(getattr(event, field)).encode()


def header(headers: Headers, name: str) -> str | None:
    """Return the value of the first header with this name, as text; None if it is missing or not ASCII."""
    for key, value in headers:
        if key == name:
            try:
                return value.decode("ascii")
            except (UnicodeDecodeError, AttributeError):
                return None
    return None


def decode(value: bytes | None, headers: Headers, key: bytes | None = None) -> AnyEvent:
    """Return the event in a record.

    Raises:
        UnknownKind, NewerVersion: If a newer version wrote the record.
        MalformedEvent: If the record does not have the format of its kind.
    """
    return decode_as(known_kind(headers) or _kind_by_name(headers), value, key)


def decode_as(kind: RecordKind, value: bytes | None, key: bytes | None) -> AnyEvent:
    """Return the event in a record of this kind.

    Raises:
        MalformedEvent: If the record does not have the format of its kind.
    """
    if value is None:
        raise MalformedEvent(f"{kind.name} has no value; it must be a JSON object")
    if len(value) > MAX_EVENT_BYTES:
        raise MalformedEvent(f"{kind.name} is {len(value)} bytes; the limit is {MAX_EVENT_BYTES}")
    try:
        event = kind.parse(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = _WRONG_VALUE.sub(r"\1", str(error))
        raise MalformedEvent(f"{kind.name}: {reason}") from None
    if kind.has_id and key != event.request_id.encode():  # type: ignore[attr-defined]
        raise MalformedEvent(f"{kind.name}: the record's key must be its request_id - at `key`")
    return event


def traceparent_in(headers: Headers) -> str | None:
    """Return the record's ``traceparent``; None if it is missing or invalid."""
    if len(headers) < 3:
        return None
    name, value = headers[2]
    if name == TRACE_HEADER:  # ``encode`` writes it as the third header
        return read_traceparent(value)
    trace = header(headers, TRACE_HEADER)
    return None if trace is None else read_traceparent(trace.encode())


class ManyDecoder:
    """Decodes many records of the same kind and version.

    Args:
        headers: The headers of any one of the records.

    Attributes:
        kind: Name of the records' kind.

    Raises:
        UnknownKind, NewerVersion, MalformedEvent: If records with these headers cannot be read.
    """

    __slots__ = ("_kind", "kind")

    def __init__(self, headers: Headers) -> None:
        self._kind = known_kind(headers) or _kind_by_name(headers)
        self.kind = self._kind.name

    def decode(self, value: bytes | None, key: bytes | None) -> AnyEvent | None:
        """Return the event of a record; None if the record cannot be read."""
        if value is None or len(value) > MAX_EVENT_BYTES:
            return None
        try:
            event = self._kind.parse(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if self._kind.has_id and key != event.request_id.encode():  # type: ignore[attr-defined]
            return None
        return event


def known_kind(headers: Headers) -> RecordKind | None:
    """Return the kind of a record whose first header is a known kind and whose second header is a known version.

    Return None for all other records.
    """
    if len(headers) < 2:
        return None
    (first, kind), (second, version) = headers[0], headers[1]
    return _KNOWN.get((kind, version)) if first == KIND_HEADER and second == VERSION_HEADER else None


def _kind_by_name(headers: Headers) -> RecordKind:
    kind = header(headers, KIND_HEADER)
    if kind is None:
        msg = f"header {KIND_HEADER!r} is missing: it must name the event, such as 'Request'"
        raise MalformedEvent(msg)
    known = KINDS.get(kind)
    if known is None:
        raise UnknownKind(f"kind {kind[:64]!r} is not known here")
    _check_version(known, header(headers, VERSION_HEADER))
    return _RECORD_KINDS[kind]


def _check_version(kind: Kind, version: str | None) -> None:
    if version is None or not version.isdigit() or len(version) > 9:
        raise MalformedEvent(f"header {VERSION_HEADER!r} of {kind.name} must be a whole number such as '1'")
    if int(version) > kind.version:
        raise NewerVersion(f"{kind.name} version {version} is newer than {kind.version}, the newest read here")
    if int(version) < 1:
        raise MalformedEvent(f"header {VERSION_HEADER!r} of {kind.name} must be at least 1")
