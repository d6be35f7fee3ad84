from typing import Any, Final

from aiokafka.errors import KafkaConnectionError

from services.bus.kafka.cluster import Cluster
from services.bus.read.fetch_wire import FetchAsk, FetchCall, encode

WAIT_MS: Final = 500
"""Maximum time in milliseconds that a fetch waits on the broker for a first record."""

COLLECT_MS: Final = 2_000
"""Maximum time in milliseconds that a fetch waits on the broker for ``least_bytes``. It is for readers that are not
urgent. They prefer few large responses, because each response costs CPU on both sides."""

PARTITION_BYTES: Final = 1_048_576
"""Maximum number of bytes of one partition in one response. A single batch that is larger is sent whole."""

ANSWER_BYTES: Final = 8_388_608
"""Maximum number of bytes of one response (8 MiB). These bytes are in memory in addition to the records that a handler
keeps."""


class FetchConnection:
    """A connection to one broker that is used only for fetches.

    Args:
        least_bytes: The broker answers a fetch when it has this many bytes of new records, or when a time limit has
            passed. The limit is ``WAIT_MS`` if ``least_bytes`` is 1, else ``COLLECT_MS``.
    """

    __slots__ = ("_cluster", "_conn", "_interrupts", "_least_bytes", "_node", "_waiting")

    def __init__(self, cluster: Cluster, node: int, least_bytes: int = 1) -> None:
        self._cluster = cluster
        self._least_bytes = least_bytes
        self._node = node
        self._conn: Any = None
        self._interrupts = 0
        self._waiting = False

    async def fetch(self, ask: FetchAsk) -> bytes | None:
        """Send a fetch and return the broker's response. If the method ``interrupt`` ends the fetch, return None."""
        before = self._interrupts
        if self._conn is None or not self._conn.connected():
            self._conn = await self._cluster.connect(self._node)
        if self._interrupts != before:
            return None
        most = {"most_bytes": ANSWER_BYTES, "most_bytes_each": PARTITION_BYTES}
        wait_ms = WAIT_MS if self._least_bytes == 1 else COLLECT_MS
        body = encode(ask, wait_ms=wait_ms, least_bytes=self._least_bytes, **most)
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
        """End the fetch that waits for a response, so that the next fetch can be sent now."""
        self._interrupts += 1
        if self._waiting:
            # A broker answers the requests of one connection in order. A new connection takes a millisecond or two.
            self.close()

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
