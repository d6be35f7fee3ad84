"""Filter and format dead letters, and restore their original records. Pure functions."""

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from schemas.ids import is_uuid7
from schemas.side_events import DeadLetter
from schemas.topics import DEAD, TOPIC_NAMED
from services.bus import RawRecord, Received, UnreadableRecord, partition_for
from services.cli.show.terminal import printable

MAX_REASON_CHARS: Final = 160
"""Maximum number of characters of a reason that a line shows."""

HEX_ROW: Final = 16
"""Number of bytes in a row of a hex dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterRecord:
    """A dead letter. Topic, partition, offset, key, value and headers are those of the record that could not be read.

    Attributes:
        number: Offset of the dead letter on ``railbus.dead``.
        at_us: Time at which the dead letter was written, in microseconds since the epoch.
        cut: Whether the record was too long to be kept whole.
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
        """The key as text; None if the key is not a request id."""
        text = (self.key or b"").decode("ascii", "replace")
        return text if is_uuid7(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Conditions for dead letters, all of which must be met. A condition of None is ignored.

    Attributes:
        topic: Topic of the record that could not be read.
        reason: Text that the dead letter's reason contains, ignoring case.
        request_id: Key of the record that could not be read.
        numbers: Offsets on ``railbus.dead``.
    """

    topic: str | None = None
    reason: str | None = None
    request_id: str | None = None
    numbers: frozenset[int] | None = None

    def matches(self, record: DeadLetterRecord) -> bool:
        return (
            (self.topic is None or record.topic == self.topic)
            and (self.reason is None or self.reason.lower() in record.reason.lower())
            and (self.request_id is None or record.request_id == self.request_id)
            and (self.numbers is None or record.number in self.numbers)
        )


def parse_dead_letter(record: Received | UnreadableRecord) -> DeadLetterRecord | None:
    """Parse a record of ``railbus.dead``; return None if it is not a dead letter."""
    if isinstance(record, UnreadableRecord):
        return DeadLetterRecord(
            number=record.offset, at_us=record.timestamp_ms * 1_000, source="?", topic=DEAD.name,
            partition=record.partition, offset=record.offset, reason=str(record.error), key=record.key,
            value=record.value, headers=tuple((name, value or b"") for name, value in record.headers),
        )  # fmt: skip
    letter = record.event
    if not isinstance(letter, DeadLetter):
        return None
    return DeadLetterRecord(
        number=record.offset, at_us=letter.at, source=letter.source, topic=letter.topic, partition=letter.partition,
        offset=letter.offset, reason=letter.reason, key=_bytes(letter.key_b64), value=_bytes(letter.value_b64),
        headers=tuple((name, _bytes(value) or b"") for name, value in letter.headers), cut=letter.cut,
    )  # fmt: skip


def dead_letter_line(record: DeadLetterRecord) -> str:
    place = f"{record.topic.removeprefix('railbus.')} {record.partition}:{record.offset}"
    size = "-" if record.value is None else len(record.value)
    about = "-" if record.request_id is None else record.request_id[-8:]
    reason = record.reason if len(record.reason) <= MAX_REASON_CHARS else record.reason[:MAX_REASON_CHARS] + "…"
    return _plain(f"{record.number:>8}  {_utc_time(record)}  {place:<24} {about:<8} {size:>8}  {reason}")


def dead_letter_json(record: DeadLetterRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "at": record.at_us,
        "source": record.source,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "reason": record.reason,
        "key_b64": _base64(record.key),
        "value_b64": _base64(record.value),
        "headers": [[name, _base64(value)] for name, value in record.headers],
        "cut": record.cut,
    }


def dead_letter_details(record: DeadLetterRecord, most_bytes: int) -> Iterator[str]:
    yield _plain(f"number   {record.number} of {DEAD.name}, put there {_utc_time(record)} by {record.source}")
    yield _plain(f"found    {record.topic} partition {record.partition} offset {record.offset}")
    yield _plain(f"reason   {record.reason}")
    yield _plain(f"request  {record.request_id or 'unknown: the key is not a request id'}")
    yield f"key      {_shown(record.key)}"
    for name, value in record.headers:
        yield _plain(f"header   {name}: {_shown(value)}")
    if record.value is None:
        yield "value    none"
        return
    yield f"value    {len(record.value)} bytes"
    yield from _dump(record.value[:most_bytes])
    if len(record.value) > most_bytes:
        yield f"... {len(record.value) - most_bytes} bytes more: all of them with --raw"


def original_record(record: DeadLetterRecord, partitions: int) -> RawRecord:
    """Return the record that a replay of this dead letter writes.

    ``partitions`` is the number of partitions of ``railbus.requests``.

    Raises:
        ValueError: The dead letter cannot be replayed.
    """
    if record.cut:
        original = f"{record.topic} {record.partition}:{record.offset}"
        msg = f"{record.number}: not all its bytes were kept; the original is at {original}"
        raise ValueError(msg)
    if record.topic == DEAD.name:
        msg = f"{record.number}: it was found on {DEAD.name} itself, where nothing is replayed"
        raise ValueError(msg)
    if record.key is None and record.value is None:
        msg = f"{record.number}: it has neither key nor value"
        raise ValueError(msg)
    shared = record.topic in TOPIC_NAMED and TOPIC_NAMED[record.topic].spread == "requests"
    partition = partition_for(record.request_id, partitions) if record.request_id and shared else record.partition
    return RawRecord(record.topic, partition, record.key, record.value, record.headers)


def _utc_time(record: DeadLetterRecord) -> str:
    return datetime.fromtimestamp(record.at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
