"""The one loop that reads, shared by group members and followers. It hands records over and never awaits the work."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from services.bus.intake import Intake
from services.bus.records import Handler, Received, Unread
from services.bus.room import Room

MAX_RECORDS: Final = 500
"""Most records handed over in one call of the handler."""

IDLE_MS: Final = 1_000
"""How long the loop sleeps when nothing comes; a record wakes it."""

Delivered = Callable[[Mapping[tuple[str, int], tuple[int, Sequence[Received | Unread]]]], None]
"""Told after the handler returned: of each partition, the next offset and what was handed over."""


async def consume(
    consumer: Any,
    *,
    intake: Intake,
    handler: Handler,
    room: Room | None,
    delivered: Delivered,
    settled: Callable[[], Awaitable[bool]],
) -> None:
    """Reads until cancelled.

    Args:
        consumer: A started aiokafka consumer.
        intake: Filters and decodes.
        handler: Gets the events of one fetch, in order within a partition. What it raises ends the loop.
        room: Nothing is read while it is full.
        delivered: Called in the same step as the handler: no await lies between them.
        settled: Awaited before a fetch is handed over; false drops it, because its partitions will be read anew.

    Raises:
        KafkaError: The consumer cannot go on.
    """
    while True:
        if room is not None:
            await room.wait()
        most = MAX_RECORDS if room is None else max(1, min(MAX_RECORDS, room.free))
        fetched = await consumer.getmany(timeout_ms=IDLE_MS, max_records=most)
        if not fetched or not await settled():
            continue
        events: list[Received | Unread] = []
        progress = {}
        for (topic, partition), records in fetched.items():
            kept = intake.take(topic, records)
            progress[topic, partition] = (records[-1].offset + 1, kept)
            events += kept
        if events:
            handler(events)
        delivered(progress)
