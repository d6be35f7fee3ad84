from typing import Any, Final

from schemas.errors import UnreadableEvent
from schemas.side_events import Account
from schemas.topics import DAY_MS, Topic
from schemas.wire import decode
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetcher import newest_records
from services.bus.records import Partition, TopicPartitions

LONGEST_OUTAGE_MS: Final = DAY_MS
"""Maximum part of an outage that is read again, in milliseconds. Of a longer outage, only this last part is read."""

LONGEST_WORK_MS: Final = DAY_MS
"""Maximum deadline of a request, in milliseconds. So a request that was open when an outage began is at most this much
older than the outage."""


async def rewound(
    cluster: Cluster, partitions: TopicPartitions, topic: Topic | None, end_ms: int, rewind_ms: int
) -> dict[Partition, int]:
    """Return for each of ``partitions`` the offset at which a reader must start to rebuild its state.

    ``topic`` is a topic with one result for each closed request, such as ``railbus.accounts``. The offset for partition
    n depends on the time of the newest result in partition n of ``topic`` (see ``rewind_to_ms``). If ``topic`` is None,
    reading starts ``rewind_ms`` before ``end_ms``.
    """
    if topic is None:
        return await cluster.offsets_for_time(partitions, end_ms - rewind_ms)
    marks = frozenset((topic.name, number) for _, number in partitions)
    begins, ends = await cluster.beginning_offsets(marks), await cluster.end_offsets(marks)
    newest = await newest_records(cluster, ends)
    starts: dict[Partition, int] = {}
    for mark in marks:
        record = newest.get(mark)
        if record is None:
            worked_ms, since_ms = (0 if begins[mark] == ends[mark] else end_ms), None  # unreadable: use ``end_ms``
        else:
            worked_ms, since_ms = record.timestamp, _since_ms(record)
        own = frozenset(partition for partition in partitions if partition[1] == mark[1])
        starts |= await cluster.offsets_for_time(own, rewind_to_ms(end_ms, worked_ms, rewind_ms, since_ms))
    return starts


def _since_ms(record: Any) -> int | None:
    try:
        event = decode(record.value, record.headers, record.key)
    except UnreadableEvent:
        return None
    since_us = event.open_since if isinstance(event, Account) else None
    return None if since_us is None else since_us // 1_000


def rewind_to_ms(now_ms: int, worked_ms: int, rewind_ms: int, since_ms: int | None = None) -> int:
    """Return the time from which a reader must read a gained partition, so that the reader can rebuild its state.

    The time is found in three steps:

    1. Subtract ``rewind_ms`` from ``worked_ms``, the time of the newest result that the group has written for the
       partition.
    2. If this time is before the limit ``now_ms - max(LONGEST_OUTAGE_MS, rewind_ms)``, take the limit instead.
    3. If ``since_ms`` is earlier than the time from step 2, take ``since_ms``, but never a time before
       ``limit - LONGEST_WORK_MS``.

    Args:
        now_ms: The present time.
        worked_ms: The time of the newest result for the gained partition. The results of partition n are in partition n
            of the result topic. A time after ``now_ms`` counts as ``now_ms``. 0 means that there is no result. The
            reader then goes back to the limit of step 2.
        rewind_ms: How far to read back from the newest result.
        since_ms: The earliest possible start of any request that was open at ``worked_ms``; None if unknown.
    """
    floor_ms = now_ms - max(LONGEST_OUTAGE_MS, rewind_ms)
    begin_ms = max(min(now_ms, worked_ms) - rewind_ms, floor_ms)
    return begin_ms if since_ms is None else min(begin_ms, max(since_ms, floor_ms - LONGEST_WORK_MS))
