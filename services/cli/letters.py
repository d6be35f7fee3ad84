"""Dead letters for people: which are meant, how they look, what is put back. Pure."""

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from schemas.books import DeadLetter
from schemas.ids import is_uuid7
from schemas.topics import DEAD, TOPIC_NAMED
from services.bus import Raw, Received, Unread, partition_for
from services.cli.terminal import printable

MAX_REASON: Final = 160
"""Characters of a reason that a line shows."""

HEX_ROW: Final = 16
"""Bytes in a row of a dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grave:
    """One record that nobody could read.

    Attributes:
        number: Its offset in ``railbus.dead``, by which it is called.
        at_us: When it was put there, microseconds since the epoch.
        source: Who put it there.
        topic: Where it was found.
        partition: Where it was found.
        offset: Where it was found.
        reason: Why it could not be read.
        key: As it was.
        value: As it was.
        headers: As they were.
        cut: Whether bytes were left out because the record was too long.
    """

    number: int
    at_us: int
    source: str
    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    cut: bool = False

    @property
    def request_id(self) -> str | None:
        """The request it is about, if its key says so."""
        text = (self.key or b"").decode("ascii", "replace")
        return text if is_uuid7(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which graves are meant; None where it does not matter.

    Attributes:
        topic: Found on this topic.
        reason: With this text in the reason.
        request_id: About this request.
        numbers: These, and no others.
    """

    topic: str | None = None
    reason: str | None = None
    request_id: str | None = None
    numbers: frozenset[int] | None = None

    def has(self, grave: Grave) -> bool:
        """Whether it is one of them."""
        return (
            (self.topic is None or grave.topic == self.topic)
            and (self.reason is None or self.reason.lower() in grave.reason.lower())
            and (self.request_id is None or grave.request_id == self.request_id)
            and (self.numbers is None or grave.number in self.numbers)
        )


def grave(record: Received | Unread) -> Grave | None:
    """The grave in a record of ``railbus.dead``; one that is no dead letter is itself a record nobody could read."""
    if isinstance(record, Unread):
        return Grave(
            number=record.offset, at_us=record.timestamp_ms * 1_000, source="?", topic=DEAD.name,
            partition=record.partition, offset=record.offset, reason=str(record.error), key=record.key,
            value=record.value, headers=tuple((name, value or b"") for name, value in record.headers),
        )  # fmt: skip
    letter = record.event
    if not isinstance(letter, DeadLetter):
        return None
    return Grave(
        number=record.offset, at_us=letter.at, source=letter.source, topic=letter.topic, partition=letter.partition,
        offset=letter.offset, reason=letter.reason, key=_bytes(letter.key_b64), value=_bytes(letter.value_b64),
        headers=tuple((name, _bytes(value) or b"") for name, value in letter.headers), cut=letter.cut,
    )  # fmt: skip


def line(it: Grave) -> str:
    """One line of the list; what was asked or answered is not in it."""
    place = f"{it.topic.removeprefix('railbus.')} {it.partition}:{it.offset}"
    size = "-" if it.value is None else len(it.value)
    about = "-" if it.request_id is None else it.request_id[-8:]
    reason = it.reason if len(it.reason) <= MAX_REASON else it.reason[:MAX_REASON] + "…"
    return _plain(f"{it.number:>8}  {_moment(it)}  {place:<24} {about:<8} {size:>8}  {reason}")


def as_json(it: Grave) -> dict[str, Any]:
    """All of it, bytes as base64."""
    return {
        "number": it.number,
        "at": it.at_us,
        "source": it.source,
        "topic": it.topic,
        "partition": it.partition,
        "offset": it.offset,
        "reason": it.reason,
        "key_b64": _base64(it.key),
        "value_b64": _base64(it.value),
        "headers": [[name, _base64(value)] for name, value in it.headers],
        "cut": it.cut,
    }


def page(it: Grave, most_bytes: int) -> Iterator[str]:
    """All of it in lines; bytes that are not text are dumped, ``most_bytes`` of them."""
    yield _plain(f"number   {it.number} of {DEAD.name}, put there {_moment(it)} by {it.source}")
    yield _plain(f"found    {it.topic} partition {it.partition} offset {it.offset}")
    yield _plain(f"reason   {it.reason}")
    yield _plain(f"request  {it.request_id or 'not to be told from its key'}")
    yield f"key      {_shown(it.key)}"
    for name, value in it.headers:
        yield _plain(f"header   {name}: {_shown(value)}")
    if it.value is None:
        yield "value    none"
        return
    yield f"value    {len(it.value)} bytes"
    yield from _dump(it.value[:most_bytes])
    if len(it.value) > most_bytes:
        yield f"... {len(it.value) - most_bytes} bytes more: all of them with --raw"


def put_back(it: Grave, partitions: int) -> Raw:
    """The record as it was, for the place where its readers look: the partition of its key's request, else its old one.

    Raises:
        ValueError: Not all of it was kept, or it was found among the dead; the message says so.
    """
    if it.cut:
        msg = f"{it.number}: not all its bytes were kept; the original is at {it.topic} {it.partition}:{it.offset}"
        raise ValueError(msg)
    if it.topic == DEAD.name:
        msg = f"{it.number}: it was found in {DEAD.name} itself, where nothing is put back"
        raise ValueError(msg)
    if it.key is None and it.value is None:
        msg = f"{it.number}: it has neither key nor value"
        raise ValueError(msg)
    shared = it.topic in TOPIC_NAMED and TOPIC_NAMED[it.topic].spread == "requests"
    partition = partition_for(it.request_id, partitions) if it.request_id and shared else it.partition
    return Raw(it.topic, partition, it.key, it.value, it.headers)


def _moment(it: Grave) -> str:
    return datetime.fromtimestamp(it.at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shown(data: bytes | None) -> str:
    if data is None:
        return "none"
    text = _text(data)
    return data[:256].hex(" ") if text is None else _plain(text[:1_000])


def _dump(data: bytes) -> Iterable[str]:
    text = _text(data)
    if text is not None:
        return (printable(part) for part in text.splitlines())
    rows = (data[at : at + HEX_ROW] for at in range(0, len(data), HEX_ROW))
    return (
        f"{number * HEX_ROW:08x}  {row.hex(' '):<{HEX_ROW * 3}} {''.join(map(_dot, row))}"
        for number, row in enumerate(rows)
    )


def _dot(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 else "."


def _text(data: bytes) -> str | None:
    """None when it is none: bytes cut inside a character at their end still count as text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return None if any(ord(char) < 32 and char not in "\r\n\t" for char in text) else text


def _plain(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
