"""Kafka's Fetch request and response, version 4, as bytes.

A reader fetches hundreds of times a second; aiokafka's general codec costs many times as much CPU. Every broker since
Kafka 0.11 supports version 4, Kafka 4 included.
"""

from collections.abc import Iterator, Mapping
from io import BytesIO
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion

from services.bus.records import Partition

API_KEY: Final = 1
VERSION: Final = 4

_REQUEST_HEADER: Final = Struct(">hhih")  # api key, version, correlation id, length of the client id
_REQUEST_START: Final = Struct(">iiiibi")  # replica, wait, fewest bytes, most bytes, isolation level, topics
_ASKED: Final = Struct(">iqi")  # partition, offset, most bytes
_ANSWERED: Final = Struct(">ihqqi")  # partition, error, high water mark, last stable offset, aborted transactions
_INT32: Final = Struct(">i")
_INT16: Final = Struct(">h")
_ABORTED_BYTES: Final = 16

_NOT_A_REPLICA: Final = -1
_READ_UNCOMMITTED: Final = 0


class PartitionData(NamedTuple):
    """One partition of a response.

    Attributes:
        end: The high water mark: the offset after the last record that readers may see.
        records: Record batches as the broker stores them.
    """

    topic: str
    partition: int
    error: int
    end: int
    records: bytes


def encode(offsets: Mapping[Partition, int], *, wait_ms: int, most_bytes: int, most_bytes_each: int) -> bytes:
    """Return a request's body; the broker answers when one byte is there or ``wait_ms`` is over."""
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(_ASKED.pack(partition, offset, most_bytes_each))
    pieces = [_REQUEST_START.pack(_NOT_A_REPLICA, wait_ms, 1, most_bytes, _READ_UNCOMMITTED, len(topics))]
    for topic, asked in topics.items():
        name = topic.encode()
        pieces += (_INT16.pack(len(name)), name, _INT32.pack(len(asked)), *asked)
    return b"".join(pieces)


def decode(body: bytes) -> Iterator[PartitionData]:
    """Yield the partitions of a response's body."""
    at = 4  # skip the throttle time: the broker has waited already
    (topics,) = _INT32.unpack_from(body, at)
    at += 4
    for _ in range(topics):
        (length,) = _INT16.unpack_from(body, at)
        at += 2
        topic = body[at : at + length].decode()
        at += length
        (partitions,) = _INT32.unpack_from(body, at)
        at += 4
        for _ in range(partitions):
            partition, error, end, _, aborted = _ANSWERED.unpack_from(body, at)
            at += _ANSWERED.size + max(aborted, 0) * _ABORTED_BYTES
            (size,) = _INT32.unpack_from(body, at)
            at += 4
            yield PartitionData(topic, partition, error, end, body[at : at + max(size, 0)])
            at += max(size, 0)


class FetchCall:
    """A request as aiokafka's connection sends it; its answer is the response body's bytes."""

    class RESPONSE_TYPE:  # noqa: N801 - aiokafka's name
        """Leaves the body as it is."""

        @staticmethod
        def decode(body: BytesIO) -> bytes:
            return body.read()

    API_KEY: ClassVar = API_KEY
    API_VERSION: ClassVar = VERSION

    __slots__ = ("_body",)

    def __init__(self, body: bytes) -> None:
        self._body = body

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> "FetchCall":
        """Check that the broker supports this version."""
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
