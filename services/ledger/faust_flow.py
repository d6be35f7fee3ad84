"""Faust, with corrections for defects that make it lose records.

* When Faust has recovered its tables, it seeks to the committed offsets and then resumes the flow of its queues,
  although it had already resumed the flow to read the changelogs. Resuming also clears the queues, so records that
  were read after the seek are dropped.
* While every partition is paused, Faust fetches from all of them and drops the records. Afterwards it seeks only in
  partitions that have a committed offset.
* Faust notes a record as read although a suspended flow dropped it. If the record is read again after a seek, Faust
  skips it. It treats skipped records as gaps of the log, and commits offsets beyond them.

In this module, queues are cleared only if the flow was suspended, the ledger seeks in every partition, and a record
that was read before is not skipped. The committed offsets are not used. The offset to start at is read from the
ledger's own table. The table's changelog has both this offset and the entries up to it.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import cached_property
from typing import Any, Final

import faust
from faust.transport.drivers import aiokafka as driver
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP
from mode.utils.queues import FlowControlEvent

BrokerError: Final[type[Exception]] = driver.KafkaError  # type: ignore[attr-defined]
"""The error of a failed request to the broker."""

FETCH_S: Final = 1.0
"""Maximum time that one call of the consumer's ``getmany`` waits for fetched records."""

COLLECT_MS: Final = 250
COLLECT_BYTES: Final = 65_536
"""The broker answers a fetch once it has ``COLLECT_BYTES`` of records, or after ``COLLECT_MS``, because each answer
costs the broker and the ledger work."""

YIELD_EACH: Final = 100
"""Each time this number of records of a fetch was passed on, other tasks of the event loop may run."""

BeginAt = Callable[[str, int], int | None]
"""Maps a topic and a partition number to the offset at which to start; None for a topic of Faust itself."""


class FlowControl(FlowControlEvent):
    """The switch that suspends and resumes Faust's queues. Resuming clears them only if they were suspended."""

    def resume(self) -> None:
        if not self.is_active():
            super().resume()


class _CollectingThread(AIOKafkaConsumerThread):
    """Faust's consumer thread, with two settings that Faust lacks: minimum size and maximum wait of a fetch."""

    def _create_worker_consumer(self, transport: Transport) -> Any:
        consumer: Any = super()._create_worker_consumer(transport)
        consumer._fetch_min_bytes = COLLECT_BYTES  # noqa: SLF001
        consumer._fetch_max_wait_ms = COLLECT_MS  # noqa: SLF001
        return consumer


class BookedConsumer(Consumer):
    """A consumer that starts at the offsets in the ledger's table and ignores the committed ones."""

    app: "FaustApp"

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _CollectingThread(self, loop=self.loop, beacon=self.beacon)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        found: Mapping[TP, int] = await self._thread.call_thread(self._seek_all)
        return found

    async def _seek_all(self) -> dict[Any, int]:
        """Seek to the offset of ``BeginAt`` in every partition of the ledger's topics; return these offsets.

        This runs in the consumer's thread.
        """
        consumer = self._thread._ensure_consumer()  # noqa: SLF001
        found: dict[Any, int] = {}
        for partition in consumer.assignment():
            offset = self.app.begin_at(partition.topic, partition.partition)
            if offset is not None:
                consumer.seek(partition, offset)
                found[partition] = offset
        return found

    async def seek_back(self, partition: TP, offset: int) -> None:
        """Seek to an earlier offset of a partition."""
        await self._thread.call_thread(self._seek_one, partition, offset)

    async def _seek_one(self, partition: TP, offset: int) -> None:
        """Seek to this offset of the partition. This runs in the consumer's thread."""
        self._thread._ensure_consumer().seek(partition, offset)  # noqa: SLF001

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch records and pass them to Faust's queues, until stopped.

        Records that come while the flow of the queues is suspended are dropped. Faust later seeks back to them.
        """
        try:
            while not (self.should_stop or fetcher.should_stop):
                await asyncio.sleep(0)
                number = 0
                async for _, message in self.getmany(timeout=FETCH_S):
                    number += 1
                    if number % YIELD_EACH == 0:
                        await asyncio.sleep(0)
                    await self._hand_out(self.callback(message))  # type: ignore[arg-type]
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise

    async def _hand_out(self, handing: Coroutine[Any, Any, Any]) -> None:
        """Run ``handing``, the coroutine that puts one record into Faust's queue; make a task only if it has to wait.

        Usually the queue has room, and the coroutine ends without waiting.
        """
        try:
            waits_for = handing.send(None)
        except StopIteration:
            return
        await self.wait_first(_rest(handing, waits_for), self.suspend_flow.wait())

    def _new_offset(self, tp: TP) -> int | None:
        """Return the offset to commit, which follows the newest acknowledged event.

        It is None if no event was acknowledged since the last call. No earlier event is left out, because events are
        acknowledged in order, and a gap before an event is handled before the event is processed.
        """
        acked = self._acked[tp]
        if not acked:
            return None
        offset = max(acked) + 1
        acked.clear()
        self._acked_index[tp].clear()
        return offset


async def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    return await _resume(coroutine, waits_for)


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, None, Any]:
    """Continue a coroutine whose first step ran outside of a task."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - cancellation is the coroutine's to handle
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(None)
    except StopIteration as ended:
        return ended.value


class _Transport(Transport):
    Consumer = BookedConsumer


class FaustApp(faust.App):
    """A Faust application with ``FlowControl`` and ``BookedConsumer``.

    Attributes:
        begin_at: See ``BeginAt``.
    """

    begin_at: BeginAt

    def __init__(self, *args: Any, begin_at: BeginAt, **options: Any) -> None:
        self.begin_at = begin_at
        super().__init__(*args, **options)

    @cached_property
    def flow_control(self) -> FlowControl:
        return FlowControl(loop=self.loop)

    def _new_transport(self) -> Any:
        return _Transport(self.conf.broker_consumer, self)
