"""Fetch, versions 4 to 11. Coded over struct: it is in every record's path.

A fetch that finds too little waits on its partitions and is woken by an append; nothing polls. Fetch sessions
(KIP-227) are not offered: every answer carries session id 0, which tells the client to name all its partitions.
"""

import asyncio
import struct
from typing import NamedTuple

from services.broker.codes import Code
from services.broker.core import Broker, Waiter
from services.broker.later import Later
from services.broker.log import PartitionLog
from services.broker.request import Answered, Request
from services.broker.wire import Malformed, Reader

LARGEST_ANSWER_BYTES = 55 * 1024 * 1024  # Kafka's fetch.max.bytes

_HEAD = struct.Struct(">iiiib")  # replica, max wait ms, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_COUNT = struct.Struct(">i")
_WANT_4 = struct.Struct(">iqi")  # partition, offset, max bytes
_WANT_5 = struct.Struct(">iqqi")  # partition, offset, log start offset, max bytes
_WANT_9 = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start offset, max bytes
_GOT_4 = struct.Struct(">ihqqii")  # partition, error, high watermark, last stable offset, aborted, size
_GOT_5 = struct.Struct(">ihqqqii")  # ... last stable offset, log start offset, aborted, size
_GOT_11 = struct.Struct(">ihqqqiii")  # ... aborted, preferred replica, size
_NO_ABORTED = -1
_NO_REPLICA = -1


class Want(NamedTuple):
    """One partition of a fetch."""

    partition: int
    offset: int
    max_bytes: int
    log: PartitionLog | None


class Asked(NamedTuple):
    """A fetch."""

    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    in_session: bool
    topics: list[tuple[bytes, list[Want]]]


def fetch(request: Request) -> Answered:
    """Answer with what is there, or wait for it."""
    asked = _read(request.body, request.version, request.broker)
    if asked.in_session:
        return _answer(asked, [], Code.FETCH_SESSION_ID_NOT_FOUND)
    if asked.max_wait_ms <= 0 or _enough(asked):
        return _answer(asked, asked.topics)
    return _Waiting(asked, request.broker).later


class _Waiting(Waiter):
    """A fetch that waits until there is enough, or its time is over, or its client is gone."""

    __slots__ = ("_asked", "_broker", "_logs", "_timer", "later")

    def __init__(self, asked: Asked, broker: Broker) -> None:
        self._asked = asked
        self._broker = broker
        self._logs = [want.log for _topic, wants in asked.topics for want in wants if want.log is not None]
        self._timer = asyncio.get_running_loop().call_later(asked.max_wait_ms / 1000, self._finish)
        self.later = Later(self._stop)
        broker.wait_for(self._logs, self)

    def woken(self) -> None:
        """One of its partitions has grown, or is gone."""
        if _enough(self._asked):
            self._finish()

    def _finish(self) -> None:
        self._stop()
        self.later.give(_answer(self._asked, self._asked.topics))

    def _stop(self) -> None:
        self._timer.cancel()
        self._broker.stop_waiting(self._logs, self)


def _read(reader: Reader, version: int, broker: Broker) -> Asked:
    data, pos = reader.data, reader.pos
    form = _WANT_9 if version >= 9 else _WANT_5 if version >= 5 else _WANT_4
    session_id = epoch = 0
    try:
        _replica, max_wait_ms, min_bytes, max_bytes, _isolation = _HEAD.unpack_from(data, pos)
        pos += _HEAD.size
        if version >= 7:
            session_id, epoch = _SESSION.unpack_from(data, pos)
            pos += _SESSION.size
        (count,) = _COUNT.unpack_from(data, pos)
        pos += _COUNT.size
        topics: list[tuple[bytes, list[Want]]] = []
        for _ in range(count):
            reader.pos = pos
            name = reader.string()
            topic = broker.topics.get(name)
            pos = reader.pos
            (partitions,) = _COUNT.unpack_from(data, pos)
            pos += _COUNT.size
            wants: list[Want] = []
            for _ in range(partitions):
                fields = form.unpack_from(data, pos)
                pos += form.size
                partition = fields[0]
                offset = fields[2] if version >= 9 else fields[1]
                log = topic.partition(partition) if topic is not None else None
                wants.append(Want(partition, offset, fields[-1], log))
            topics.append((name.encode(), wants))
    except struct.error:
        raise Malformed("the request ends in the middle of a number") from None
    # What follows (forgotten partitions of a session, the client's rack) changes nothing here.
    return Asked(version, max_wait_ms, min(min_bytes, max_bytes), max_bytes, session_id != 0 or epoch > 0, topics)


def _enough(asked: Asked) -> bool:
    """Whether to answer now: enough bytes, or an error that the client should hear of."""
    ready = 0
    for _topic, wants in asked.topics:
        for want in wants:
            log = want.log
            if log is None or log.gone or not log.start <= want.offset <= log.end:
                return True
            if want.offset < log.end:
                if asked.min_bytes <= 1:
                    return True
                ready += log.available(want.offset, want.max_bytes)
    return ready >= asked.min_bytes or not asked.topics


def _answer(asked: Asked, topics: list[tuple[bytes, list[Want]]], code: Code = Code.NONE) -> bytes:
    parts = [b"\0\0\0\0" if asked.version < 7 else struct.pack(">ihi", 0, code, 0), _COUNT.pack(len(topics))]
    room = min(asked.max_bytes, LARGEST_ANSWER_BYTES)
    first = True
    for name, wants in topics:
        parts.append(struct.pack(">h", len(name)) + name + _COUNT.pack(len(wants)))
        for want in wants:
            error, records = _take(want, room, first=first)
            if records:
                room -= len(records)
                first = False
            parts.append(_head(asked.version, want, error, len(records)))
            if records:
                parts.append(records)
    return b"".join(parts)


def _take(want: Want, room: int, *, first: bool) -> tuple[Code, bytes]:
    """A partition's share. The first batch of all is given however large it is, or a reader would hang."""
    log = want.log
    if log is None or log.gone:
        return Code.UNKNOWN_TOPIC_OR_PARTITION, b""
    if want.offset == log.end:
        return Code.NONE, b""
    if not log.start <= want.offset < log.end:
        return Code.OFFSET_OUT_OF_RANGE, b""
    if room <= 0 and not first:
        return Code.NONE, b""
    return Code.NONE, log.read(want.offset, min(want.max_bytes, max(room, 0)), at_least_one=first)


def _head(version: int, want: Want, code: Code, size: int) -> bytes:
    log = want.log
    start, end = (log.start, log.end) if log is not None and not code else (-1, -1)
    if version >= 11:
        return _GOT_11.pack(want.partition, code, end, end, start, _NO_ABORTED, _NO_REPLICA, size)
    if version >= 5:
        return _GOT_5.pack(want.partition, code, end, end, start, _NO_ABORTED, size)
    return _GOT_4.pack(want.partition, code, end, end, _NO_ABORTED, size)
