"""From when on a fold reads what it gains."""

from typing import Final

from schemas.topics import DAY_MS, Topic
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetcher import newest_ms
from services.bus.records import Partition, TopicPartitions

LONGEST_OUTAGE_MS: Final = DAY_MS
"""Of a longer time without any member, only so much of the log is read again."""


async def rewound(
    cluster: Cluster, partitions: TopicPartitions, topic: Topic | None, end_ms: int, rewind_ms: int
) -> dict[Partition, int]:
    """Return where to begin to read each partition that a fold gains.

    Args:
        cluster: Open.
        partitions: What is gained.
        topic: A topic that only this group writes to; None for none.
        end_ms: The time of the newest record.
        rewind_ms: How long before it, or before the newest record of ``topic``, reading begins.
    """
    if topic is None:
        return await cluster.offsets_for_time(partitions, end_ms - rewind_ms)
    marks = frozenset((topic.name, number) for _, number in partitions)
    begins, ends = await cluster.beginning_offsets(marks), await cluster.end_offsets(marks)
    worked = await newest_ms(cluster, ends)
    starts: dict[Partition, int] = {}
    for mark in marks:
        worked_ms = worked.get(mark, 0 if begins[mark] == ends[mark] else end_ms)  # unknown: as without the topic
        own = frozenset(partition for partition in partitions if partition[1] == mark[1])
        starts |= await cluster.offsets_for_time(own, rewind_to_ms(end_ms, worked_ms, rewind_ms))
    return starts


def rewind_to_ms(now_ms: int, worked_ms: int, rewind_ms: int) -> int:
    """Return from when on a fold reads what it gains.

    Args:
        now_ms: The time.
        worked_ms: When a member of the group last wrote about this partition number; 0 for never.
        rewind_ms: No work is open for longer than this while a member works.
    """
    return max(min(now_ms, worked_ms) - rewind_ms, now_ms - max(LONGEST_OUTAGE_MS, rewind_ms))
