"""The time from which a fold reads a partition that it gains."""

from typing import Any, Final

from schemas.errors import UnreadableEvent
from schemas.side_events import Account
from schemas.topics import DAY_MS, Topic
from schemas.wire import decode
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetcher import newest_records
from services.bus.records import Partition, TopicPartitions

LONGEST_OUTAGE_MS: Final = DAY_MS
"""If the group had no member for longer than this, only the log of this latest period is read again."""

LONGEST_WORK_MS: Final = DAY_MS
"""No deadline is longer, so a request that was open when the outage began is at most this much older."""


async def rewound(
    cluster: Cluster, partitions: TopicPartitions, topic: Topic | None, end_ms: int, rewind_ms: int
) -> dict[Partition, int]:
    """Return where to begin to read each partition that a fold gains.

    Args:
        cluster: Open.
        partitions: The partitions that are gained.
        topic: The topic to which the outcome of work is written; None for none.
        end_ms: The time of the newest record.
        rewind_ms: How long before it, or before the newest record of ``topic``, reading begins. An account there also
            says since when requests are open for longer.
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
            worked_ms, since_ms = (0 if begins[mark] == ends[mark] else end_ms), None  # unknown: as without the topic
        else:
            worked_ms, since_ms = record.timestamp, _since_ms(record)
        own = frozenset(partition for partition in partitions if partition[1] == mark[1])
        starts |= await cluster.offsets_for_time(own, rewind_to_ms(end_ms, worked_ms, rewind_ms, since_ms))
    return starts


def _since_ms(record: Any) -> int | None:
    """Return the time of the oldest open request, by the newest record; None if the record has none."""
    try:
        event = decode(record.value, record.headers, record.key)
    except UnreadableEvent:
        return None
    since_us = event.open_since if isinstance(event, Account) else None
    return None if since_us is None else since_us // 1_000


def rewind_to_ms(now_ms: int, worked_ms: int, rewind_ms: int, since_ms: int | None = None) -> int:
    """Return the time from which a fold reads a partition that it gains.

    Args:
        now_ms: The current time.
        worked_ms: When work of this partition number was last done; 0 for never.
        rewind_ms: No work but that of ``since_ms`` is open for longer than this while a member works.
        since_ms: When the oldest work began that was open at ``worked_ms``; None if nobody noted it.
    """
    floor_ms = now_ms - max(LONGEST_OUTAGE_MS, rewind_ms)
    begin_ms = max(min(now_ms, worked_ms) - rewind_ms, floor_ms)
    return begin_ms if since_ms is None else min(begin_ms, max(since_ms, floor_ms - LONGEST_WORK_MS))
