"""Encode Kafka's Fetch request and decode its response, version 7.

A reader fetches hundreds of times a second, and aiokafka's general codec would cost many times as much CPU. Version 7
has fetch sessions (KIP-227): a request contains only the partitions whose offset has changed, and a response only those
that have new data. Every broker since Kafka 1.1 supports this version, including Kafka 4.
"""

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion

from services.bus.records import Partition

API_KEY: Final = 1
VERSION: Final = 7

_REQUEST_HEADER: Final = Struct(">hhih")  # api key, version, correlation id, length of the client id
_REQUEST_START: Final = Struct(">iiiibiii")  # replica, wait, fewest, most bytes, isolation, session, epoch, topics
_ASKED: Final = Struct(">iqqi")  # partition, offset, log start (a replica's), most bytes
_RESPONSE_START: Final = Struct(">ihii")  # throttle time (the broker has waited already), error, session, topics
_ANSWERED: Final = Struct(">ihqqqi")  # partition, error, high water mark, last stable, log start, aborted transactions
_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_ABORTED_BYTES: Final = 16

_NOT_A_REPLICA: Final = -1
_READ_UNCOMMITTED: Final = 0

NO_SESSION: Final = 0
OPEN_EPOCH: Final = 0
"""Epoch of a request that names all partitions and opens a new session. If it has a session id, that session ends."""

WITHOUT_SESSION_EPOCH: Final = -1
"""Epoch of a request that names all partitions and opens no session."""


class FetchAsk(NamedTuple):
    """The content of one fetch request.

    Attributes:
        session_id: 0 if there is no session.
        epoch: The number of the request in its session. ``OPEN_EPOCH`` opens a session, and ``WITHOUT_SESSION_EPOCH``
            makes a request outside any session.
        offsets: The partitions that are new in the session or whose offset has changed, with the next offset to read.
        forgotten: Partitions to remove from the session.
    """

    session_id: int
    epoch: int
    offsets: Mapping[Partition, int]
    forgotten: Sequence[Partition] = ()


class FetchAnswer(NamedTuple):
    """A response to a fetch.

    Attributes:
        error: Error code of the whole response, for example about the session; 0 if there is no error.
        session_id: 0 if the broker keeps no session.
        parts: In a session, the partitions that have new data. Without a session, all requested partitions.
    """

    error: int
    session_id: int
    parts: Iterator["PartitionData"]


class PartitionData(NamedTuple):
    """One partition of a response.

    Attributes:
        end: The high water mark, that is, the offset after the last record that readers may see.
        records: Record batches in the format in which the broker stores them.
    """

    topic: str
    partition: int
    error: int
    end: int
    records: bytes


def encode(ask: FetchAsk, *, wait_ms: int, most_bytes: int, most_bytes_each: int, least_bytes: int = 1) -> bytes:
    asked: dict[str, list[bytes]] = {}
    for (topic, partition), offset in ask.offsets.items():
        asked.setdefault(topic, []).append(_ASKED.pack(partition, offset, _NOT_A_REPLICA, most_bytes_each))
    forgotten: dict[str, list[bytes]] = {}
    for topic, partition in ask.forgotten:
        forgotten.setdefault(topic, []).append(_INT32.pack(partition))
    start = (_NOT_A_REPLICA, wait_ms, least_bytes, most_bytes, _READ_UNCOMMITTED, ask.session_id, ask.epoch, len(asked))
    pieces = [_REQUEST_START.pack(*start)]
    _add_topics(pieces, asked)
    pieces.append(_INT32.pack(len(forgotten)))
    _add_topics(pieces, forgotten)
    return b"".join(pieces)


def _add_topics(pieces: list[bytes], topics: Mapping[str, Sequence[bytes]]) -> None:
    for topic, parts in topics.items():
        name = topic.encode()
        pieces += (_INT16.pack(len(name)), name, _INT32.pack(len(parts)), *parts)


def decode(body: bytes) -> FetchAnswer:
    """Decode the body of a response. Partitions are decoded lazily."""
    _, error, session_id, topics = _RESPONSE_START.unpack_from(body, 0)
    return FetchAnswer(error, session_id, _parts(body, _RESPONSE_START.size, topics))


def _parts(body: bytes, at: int, topics: int) -> Iterator[PartitionData]:
    for _ in range(topics):
        (length,) = _INT16.unpack_from(body, at)
        at += 2
        topic = body[at : at + length].decode()
        at += length
        (partitions,) = _INT32.unpack_from(body, at)
        at += 4
        for _ in range(partitions):
            partition, error, end, _, _, aborted = _ANSWERED.unpack_from(body, at)
            at += _ANSWERED.size
            if aborted > 0:
                at += aborted * _ABORTED_BYTES
            (size,) = _INT32.unpack_from(body, at)
            at += 4
            records_end = at + size if size > 0 else at
            yield PartitionData(topic, partition, error, end, body[at:records_end])
            at = records_end


class FetchCall:
    """A request in the form that aiokafka's connection expects. Its response is the undecoded body, as bytes."""

    class RESPONSE_TYPE:  # noqa: N801 - aiokafka's name
        @staticmethod
        def decode(body: BytesIO) -> bytes:
            return body.read()

    API_KEY: ClassVar = API_KEY
    API_VERSION: ClassVar = VERSION

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> "FetchCall":
        low, high = versions.get(API_KEY, (0, -1))
        if not low <= VERSION <= high:
            raise IncompatibleBrokerVersion(f"the broker speaks Fetch {low} to {high}, not {VERSION}")
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> "_Bytes":
        name = client_id.encode()
        return _Bytes(_REQUEST_HEADER.pack(API_KEY, VERSION, correlation_id, len(name)) + name)

    def encode(self) -> bytes:
        return self._body

    def parse_response_header(self, response: BytesIO) -> "_ResponseHeader":
        return _ResponseHeader(*_INT32.unpack(response.read(4)))


class _Bytes(NamedTuple):
    data: bytes

    def encode(self) -> bytes:
        return self.data


class _ResponseHeader(NamedTuple):
    correlation_id: int
