"""Subclasses of Faust's classes. The subclasses correct defects that make Faust lose records."""

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
"""The broker answers a fetch once it has ``COLLECT_BYTES`` of records, or after ``COLLECT_MS``, because each response
costs the broker and the ledger work."""

YIELD_EACH: Final = 100
"""Each time this number of records of a fetch was passed on, other tasks of the event loop may run."""

BeginAt = Callable[[str, int], int | None]
"""Maps a topic and a partition number to the offset at which to start; None for a topic of Faust itself."""


class FlowControl(FlowControlEvent):
    def resume(self) -> None:
        # After a recovery, Faust resumes the flow twice, and seeks in between. Resuming clears the queues, so the
        # second call would drop records that were read after the seek.
        if not self.is_active():
            super().resume()


class _CollectingThread(AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Transport) -> Any:
        consumer: Any = super()._create_worker_consumer(transport)
        consumer._fetch_min_bytes = COLLECT_BYTES  # noqa: SLF001
        consumer._fetch_max_wait_ms = COLLECT_MS  # noqa: SLF001
        return consumer


class BookedConsumer(Consumer):
    """A consumer that starts at the offsets that the ledger keeps in its Faust table, not at the committed offsets."""

    app: "FaustApp"

    def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
        return _CollectingThread(self, loop=self.loop, beacon=self.beacon)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        # While all partitions are paused, Faust drops the records that it fetches. It later seeks only in partitions
        # with a committed offset, so here every partition is sought.
        found: Mapping[TP, int] = await self._thread.call_thread(self._seek_all)
        return found

    async def _seek_all(self) -> dict[Any, int]:
        # This runs in the consumer's thread.
        consumer = self._thread._ensure_consumer()  # noqa: SLF001
        found: dict[Any, int] = {}
        for partition in consumer.assignment():
            offset = self.app.begin_at(partition.topic, partition.partition)
            if offset is not None:
                consumer.seek(partition, offset)
                found[partition] = offset
        return found

    async def seek_back(self, partition: TP, offset: int) -> None:
        await self._thread.call_thread(self._seek_one, partition, offset)

    async def _seek_one(self, partition: TP, offset: int) -> None:
        # This runs in the consumer's thread.
        self._thread._ensure_consumer().seek(partition, offset)  # noqa: SLF001

    async def _drain_messages(self, fetcher: Any) -> None:
        try:
            while not (self.should_stop or fetcher.should_stop):
                await asyncio.sleep(0)
                number = 0
                async for _, message in self.getmany(timeout=FETCH_S):
                    number += 1
                    if number % YIELD_EACH == 0:
                        await asyncio.sleep(0)
                    # Faust's own method skips records that were read before, even if a suspended flow dropped them.
                    await self._hand_out(self.callback(message))  # type: ignore[arg-type]
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise

    async def _hand_out(self, handing: Coroutine[Any, Any, Any]) -> None:
        try:
            # Usually the queue has room, and the coroutine ends at its first step. Then no task is needed.
            waits_for = handing.send(None)
        except StopIteration:
            return
        await self.wait_first(_rest(handing, waits_for), self.suspend_flow.wait())

    def _new_offset(self, tp: TP) -> int | None:
        acked = self._acked[tp]
        if not acked:
            return None
        # Events are acknowledged in order, and a gap before an event is handled before the event. So no earlier event
        # is left out.
        offset = max(acked) + 1
        acked.clear()
        self._acked_index[tp].clear()
        return offset


async def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Any:
    return await _resume(coroutine, waits_for)


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, None, Any]:
    try:
        # The first step of the coroutine ran outside of a task.
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
    begin_at: BeginAt

    def __init__(self, *args: Any, begin_at: BeginAt, **options: Any) -> None:
        self.begin_at = begin_at
        super().__init__(*args, **options)

    @cached_property
    def flow_control(self) -> FlowControl:
        return FlowControl(loop=self.loop)

    def _new_transport(self) -> Any:
        return _Transport(self.conf.broker_consumer, self)
