"""Handler of Fetch, versions 4 to 11, with fetch sessions (KIP-227)."""

import asyncio
import struct
from collections.abc import Iterable
from typing import NamedTuple

from services.broker.fetch_sessions import FetchedPartition, FetchSession
from services.broker.log_waiters import LogWaiter
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.responses import ApiResponse, DeferredResponse
from services.broker.protocol.wire import MalformedRequest, Reader
from services.broker.state import ApiRequest, BrokerState
from services.broker.storage.error_log import log_storage_error

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
_RESPONSE_START = struct.Struct(">ihi")  # throttle time, error, session id
_LENGTH = struct.Struct(">h")
_LARGEST_EPOCH = 2**31 - 1
_NO_SESSION = 0
_OPEN = 0  # the epoch of a request that opens a session
_WITHOUT_SESSION = -1
_NO_ABORTED = -1
_NO_REPLICA = -1


class FetchRequest(NamedTuple):
    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    epoch: int
    asked: list[FetchedPartition]
    forgotten: list[tuple[bytes, int]]


def fetch(request: ApiRequest) -> ApiResponse:
    broker, wanted = request.broker, _read(request.body, request.version, request.broker)
    session: FetchSession | None = None
    if wanted.epoch in (_OPEN, _WITHOUT_SESSION):
        if wanted.session_id != _NO_SESSION:
            broker.fetch_sessions.close(wanted.session_id)
        if wanted.epoch == _OPEN and wanted.asked:
            session = broker.fetch_sessions.open(wanted.asked)
    else:
        session = broker.fetch_sessions.find(wanted.session_id)
        if session is None:
            return _refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != wanted.epoch:
            return _refuse(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.next_epoch = wanted.epoch % _LARGEST_EPOCH + 1
        if not broker.fetch_sessions.update(session, wanted.asked, wanted.forgotten):
            return _refuse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)  # the client retries with all partitions
    partitions: Iterable[FetchedPartition] = wanted.asked if session is None else session.partitions.values()
    if wanted.max_wait_ms <= 0 or _enough(wanted, partitions):
        return _answer(wanted, partitions, session)
    return _WaitingFetch(wanted, partitions, session, broker).response


class _WaitingFetch(LogWaiter):
    __slots__ = ("_broker", "_logs", "_partitions", "_request", "_session", "_timer", "response")

    def __init__(
        self,
        request: FetchRequest,
        partitions: Iterable[FetchedPartition],
        session: FetchSession | None,
        broker: BrokerState,
    ) -> None:
        self._request = request
        self._partitions = partitions
        self._session = session
        self._broker = broker
        self._timer = asyncio.get_running_loop().call_later(request.max_wait_ms / 1000, self._finish)
        self.response = DeferredResponse(self._stop)
        if session is not None:  # the session wakes this fetch
            self._logs = []
            session.waiting = self
        else:
            self._logs = [each.log for each in partitions if each.log is not None]
            broker.waiters.add(self, self._logs)

    def on_growth(self) -> None:
        if _enough(self._request, self._partitions):
            self._finish()

    def _finish(self) -> None:
        self._stop()
        self.response.set_result(_answer(self._request, self._partitions, self._session))

    def _stop(self) -> None:
        self._timer.cancel()
        if self._session is None:
            self._broker.waiters.remove(self, self._logs)
        elif self._session.waiting is self:
            self._session.waiting = None


def _read(reader: Reader, version: int, broker: BrokerState) -> FetchRequest:
    data, pos = reader.data, reader.pos
    form = _PARTITION_9 if version >= 9 else _PARTITION_5 if version >= 5 else _PARTITION_4
    session_id, epoch = _NO_SESSION, _WITHOUT_SESSION
    try:
        _replica, max_wait_ms, min_bytes, max_bytes, _isolation = _REQUEST_START.unpack_from(data, pos)
        pos += _REQUEST_START.size
        if version >= 7:
            session_id, epoch = _SESSION.unpack_from(data, pos)
            pos += _SESSION.size
        (count,) = _COUNT.unpack_from(data, pos)
        pos += _COUNT.size
        asked: list[FetchedPartition] = []
        for _ in range(count):
            reader.pos = pos
            name = reader.string()
            topic = broker.topics.get(name)
            pos = reader.pos
            (partition_count,) = _COUNT.unpack_from(data, pos)
            pos += _COUNT.size
            encoded = name.encode()
            for _ in range(partition_count):
                fields = form.unpack_from(data, pos)
                pos += form.size
                partition = fields[0]
                offset = fields[2] if version >= 9 else fields[1]
                log = topic.partition(partition) if topic is not None else None
                asked.append(FetchedPartition(encoded, partition, offset, fields[-1], log))
    except struct.error:
        raise MalformedRequest("the request ends in the middle of a number") from None
    forgotten: list[tuple[bytes, int]] = []
    if version >= 7:
        reader.pos = pos
        for _ in range(reader.i32()):
            topic_name = reader.string().encode()
            forgotten += [(topic_name, number) for number in reader.array(reader.i32)]
    # The last field, the client's rack, has no effect here.
    most = min(min_bytes, max_bytes)
    return FetchRequest(version, max_wait_ms, most, max_bytes, session_id, epoch, asked, forgotten)


def _enough(request: FetchRequest, partitions: Iterable[FetchedPartition]) -> bool:
    ready, none = 0, True
    for partition in partitions:
        none = False
        log = partition.log
        if log is None or log.deleted:
            return True
        offset, end = partition.offset, log.end
        if offset == end:
            continue
        if not log.start <= offset < end or request.min_bytes <= 1:
            return True
        try:
            ready += log.available(offset, partition.max_bytes)
        except OSError:
            return True  # the response reports the error
    return ready >= request.min_bytes or none


def _refuse(code: ErrorCode) -> bytes:
    return _RESPONSE_START.pack(0, code, _NO_SESSION) + _COUNT.pack(0)


def _answer(request: FetchRequest, partitions: Iterable[FetchedPartition], session: FetchSession | None) -> bytes:
    goes_on = session is not None and request.epoch != _OPEN
    room = min(request.max_bytes, LARGEST_ANSWER_BYTES)
    topics: dict[bytes, list[bytes]] = {}  # two pieces for each partition: header and records
    served: list[FetchedPartition] = []
    for partition in partitions:
        log = partition.log
        if (  # unchanged, which is true of most partitions in most fetches
            goes_on
            and log is not None
            and partition.offset == partition.told_end == log.end
            and partition.told_start == log.start
            and not log.deleted
        ):
            continue
        error, records = _read_log(partition, room, first=not served)
        start, end = (log.start, log.end) if log is not None and not error else (-1, -1)
        if records:
            room -= len(records)
            served.append(partition)
        elif goes_on and not error and end == partition.told_end and start == partition.told_start:
            continue
        partition.told_end, partition.told_start = end, start
        header = _result_header(request.version, partition.partition, error, start, end, len(records))
        topics.setdefault(partition.topic, []).extend((header, records))
    if session is not None:
        for partition in served:
            session.give_way(partition)
    session_id = _NO_SESSION if session is None else session.session_id
    start_of_all = b"\0\0\0\0" if request.version < 7 else _RESPONSE_START.pack(0, ErrorCode.NONE, session_id)
    pieces = [start_of_all, _COUNT.pack(len(topics))]
    for name, parts in topics.items():
        pieces += (_LENGTH.pack(len(name)), name, _COUNT.pack(len(parts) // 2), *parts)
    return b"".join(pieces)


def _read_log(partition: FetchedPartition, room: int, *, first: bool) -> tuple[ErrorCode, bytes]:
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
        # The first batch is returned even if it exceeds the limit. Otherwise, a client could never read past it.
        return ErrorCode.NONE, log.read(partition.offset, min(partition.max_bytes, max(room, 0)), at_least_one=first)
    except OSError as error:
        log_storage_error(f"{partition.topic.decode()}-{partition.partition}", error, "read")
        return ErrorCode.KAFKA_STORAGE_ERROR, b""


def _result_header(version: int, partition: int, code: ErrorCode, start: int, end: int, size: int) -> bytes:
    if version >= 11:
        return _RESULT_11.pack(partition, code, end, end, start, _NO_ABORTED, _NO_REPLICA, size)
    if version >= 5:
        return _RESULT_5.pack(partition, code, end, end, start, _NO_ABORTED, size)
    return _RESULT_4.pack(partition, code, end, end, _NO_ABORTED, size)
