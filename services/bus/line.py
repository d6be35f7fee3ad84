"""The connection to one broker that fetches go over."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiokafka.errors import KafkaConnectionError

from services.bus.fetch_wire import FetchCall, Partition, encode

WAIT_MS: Final = 500
"""How long a fetch may wait on the broker for a first record."""

PARTITION_BYTES: Final = 1_048_576
"""Most bytes of one partition in one answer; a larger single batch comes all the same."""

ANSWER_BYTES: Final = 8_388_608
"""Most bytes of one answer (8 MiB): so much is held beside what a handler has taken."""


class Connecting(Protocol):
    """What a line needs of the cluster."""

    async def connect(self, node: int) -> Any:
        """A connection to this broker."""


class Line:
    """The connection to one broker that fetches go over."""

    __slots__ = ("_cluster", "_conn", "_interrupts", "_node", "_waiting")

    def __init__(self, cluster: Connecting, node: int) -> None:
        self._cluster = cluster
        self._node = node
        self._conn: Any = None
        self._interrupts = 0
        self._waiting = False

    async def fetch(self, offsets: Mapping[Partition, int]) -> bytes | None:
        """The broker's answer; None when the wait for it was interrupted.

        Raises:
            OSError, KafkaError, TimeoutError: The connection failed.
        """
        before = self._interrupts
        if self._conn is None or not self._conn.connected():
            self._conn = await self._cluster.connect(self._node)
        if self._interrupts != before:
            return None
        body = encode(offsets, wait_ms=WAIT_MS, most_bytes=ANSWER_BYTES, most_bytes_each=PARTITION_BYTES)
        self._waiting = True
        try:
            answer: bytes = await self._conn.send(FetchCall(body))
        except KafkaConnectionError:
            if self._interrupts != before:
                return None
            raise
        finally:
            self._waiting = False
        return answer

    def interrupt(self) -> None:
        """Ends a fetch that waits, because others are to be asked for.

        A broker answers one connection's requests in order, so the next fetch must not stand behind this one's wait:
        the connection is dropped. A new one costs a millisecond or two.
        """
        self._interrupts += 1
        if self._waiting:
            self.close()

    def close(self) -> None:
        """Drops the connection."""
        if self._conn is not None:
            self._conn.close()
            self._conn = None
