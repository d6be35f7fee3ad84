"""Fetch, versions 4 to 11. Uses struct directly: every record passes here.

A fetch that finds too little waits on its partitions and is woken by an append; nothing polls. Fetch sessions
(KIP-227) are not offered: every response has session id 0, which makes the client name all its partitions.
"""

import asyncio
import struct
from typing import NamedTuple

from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse, DeferredResponse
from services.broker.protocol.wire import MalformedRequest, Reader
from services.broker.state import ApiRequest, BrokerState, LogWaiter
from services.broker.storage.error_log import log_storage_error
from services.broker.storage.partition_log import PartitionLog

LARGEST_ANSWER_BYTES = 55 * 1024 * 1024  # Kafka's fetch.max.bytes

_REQUEST_START = struct.Struct(">iiiib")  # replica, max wait ms, min bytes, max bytes, isolation level
_SESSION = struct.Struct(">ii")
_COUNT = struct.Struct(">i")
_PARTITION_4 = struct.Struct(">iqi")  # partition, offset, max bytes
_PARTITION_5 = struct.Struct(">iqqi")  # partition, offset, log start offset, max bytes
_PARTITION_9 = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start offset, max bytes
_RESULT_4 = struct.Struct(">ihqqii")  # partition, error, high watermark, last stable offset, aborted, size
_RESULT_5 = struct.Struct(">ihqqqii")  # ... last stable offset, log start offset, aborted, size
_RESULT_11 = struct.Struct(">ihqqqiii")  # ... aborted, preferred replica, size
_NO_ABORTED = -1
_NO_REPLICA = -1


class FetchPartition(NamedTuple):
    """One partition of a fetch."""

    partition: int
    offset: int
    max_bytes: int
    log: PartitionLog | None


class FetchRequest(NamedTuple):
    """A parsed fetch."""

    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    in_session: bool
    topics: list[tuple[bytes, list[FetchPartition]]]


def fetch(request: ApiRequest) -> ApiResponse:
    """Answer with what is there, or wait for it."""
    fetch_request = _read(request.body, request.version, request.broker)
    if fetch_request.in_session:
        return _answer(fetch_request, [], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if fetch_request.max_wait_ms <= 0 or _enough(fetch_request):
        return _answer(fetch_request, fetch_request.topics)
    return _WaitingFetch(fetch_request, request.broker).response


class _WaitingFetch(LogWaiter):
    """A fetch that waits for enough bytes, its timeout, or the end of its connection."""

    __slots__ = ("_broker", "_logs", "_request", "_timer", "response")

    def __init__(self, request: FetchRequest, broker: BrokerState) -> None:
        self._request = request
        self._broker = broker
        self._logs = [each.log for _topic, partitions in request.topics for each in partitions if each.log is not None]
        self._timer = asyncio.get_running_loop().call_later(request.max_wait_ms / 1000, self._finish)
        self.response = DeferredResponse(self._stop)
        broker.wait_for(self._logs, self)

    def on_growth(self) -> None:
        if _enough(self._request):
            self._finish()

    def _finish(self) -> None:
        self._stop()
        self.response.set_result(_answer(self._request, self._request.topics))

    def _stop(self) -> None:
        self._timer.cancel()
        self._broker.stop_waiting(self._logs, self)


def _read(reader: Reader, version: int, broker: BrokerState) -> FetchRequest:
    data, pos = reader.data, reader.pos
    form = _PARTITION_9 if version >= 9 else _PARTITION_5 if version >= 5 else _PARTITION_4
    session_id = epoch = 0
    try:
        _replica, max_wait_ms, min_bytes, max_bytes, _isolation = _REQUEST_START.unpack_from(data, pos)
        pos += _REQUEST_START.size
        if version >= 7:
            session_id, epoch = _SESSION.unpack_from(data, pos)
            pos += _SESSION.size
        (count,) = _COUNT.unpack_from(data, pos)
        pos += _COUNT.size
        topics: list[tuple[bytes, list[FetchPartition]]] = []
        for _ in range(count):
            reader.pos = pos
            name = reader.string()
            topic = broker.topics.get(name)
            pos = reader.pos
            (partition_count,) = _COUNT.unpack_from(data, pos)
            pos += _COUNT.size
            partitions: list[FetchPartition] = []
            for _ in range(partition_count):
                fields = form.unpack_from(data, pos)
                pos += form.size
                partition = fields[0]
                offset = fields[2] if version >= 9 else fields[1]
                log = topic.partition(partition) if topic is not None else None
                partitions.append(FetchPartition(partition, offset, fields[-1], log))
            topics.append((name.encode(), partitions))
    except struct.error:
        raise MalformedRequest("the request ends in the middle of a number") from None
    # The rest (forgotten partitions of a session, the client's rack) has no effect here.
    return FetchRequest(
        version, max_wait_ms, min(min_bytes, max_bytes), max_bytes, session_id != 0 or epoch > 0, topics
    )


def _enough(request: FetchRequest) -> bool:
    """Return whether to answer now: enough bytes, or an error to report."""
    ready = 0
    for _topic, partitions in request.topics:
        for partition in partitions:
            log = partition.log
            if log is None or log.deleted or not log.start <= partition.offset <= log.end:
                return True
            if partition.offset < log.end:
                if request.min_bytes <= 1:
                    return True
                try:
                    ready += log.available(partition.offset, partition.max_bytes)
                except OSError:
                    return True  # the answer says so
    return ready >= request.min_bytes or not request.topics


def _answer(
    request: FetchRequest, topics: list[tuple[bytes, list[FetchPartition]]], code: ErrorCode = ErrorCode.NONE
) -> bytes:
    parts = [b"\0\0\0\0" if request.version < 7 else struct.pack(">ihi", 0, code, 0), _COUNT.pack(len(topics))]
    room = min(request.max_bytes, LARGEST_ANSWER_BYTES)
    first = True
    for name, partitions in topics:
        parts.append(struct.pack(">h", len(name)) + name + _COUNT.pack(len(partitions)))
        for partition in partitions:
            error, records = _read_log(name, partition, room, first=first)
            if records:
                room -= len(records)
                first = False
            parts.append(_result_header(request.version, partition, error, len(records)))
            if records:
                parts.append(records)
    return b"".join(parts)


def _read_log(topic: bytes, partition: FetchPartition, room: int, *, first: bool) -> tuple[ErrorCode, bytes]:
    """Read a partition's share; the first batch of all is sent whatever its size, or a reader would stall."""
    log = partition.log
    if log is None or log.deleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, b""
    if partition.offset == log.end:
        return ErrorCode.NONE, b""
    if not log.start <= partition.offset < log.end:
        return ErrorCode.OFFSET_OUT_OF_RANGE, b""
    if room <= 0 and not first:
        return ErrorCode.NONE, b""
    try:
        return ErrorCode.NONE, log.read(partition.offset, min(partition.max_bytes, max(room, 0)), at_least_one=first)
    except OSError as error:
        log_storage_error(f"{topic.decode()}-{partition.partition}", error, "read")
        return ErrorCode.KAFKA_STORAGE_ERROR, b""


def _result_header(version: int, partition: FetchPartition, code: ErrorCode, size: int) -> bytes:
    log = partition.log
    start, end = (log.start, log.end) if log is not None and not code else (-1, -1)
    if version >= 11:
        return _RESULT_11.pack(partition.partition, code, end, end, start, _NO_ABORTED, _NO_REPLICA, size)
    if version >= 5:
        return _RESULT_5.pack(partition.partition, code, end, end, start, _NO_ABORTED, size)
    return _RESULT_4.pack(partition.partition, code, end, end, _NO_ABORTED, size)
