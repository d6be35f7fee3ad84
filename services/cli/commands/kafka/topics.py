"""``railbus topics``: list the topics with their partitions, record counts and retention."""

import argparse
import asyncio
from collections.abc import Mapping
from typing import Final

from schemas.topics import TOPICS, Topic
from services.bus import BusSettings, TailReader, cluster_topics, ensure_topics
from services.cli.common import add_kafka_option, bus_settings, reaching_broker, run_coroutine

_HOUR_MS: Final = 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_option(parser)
    parser.add_argument("--create", action="store_true", help="create missing topics")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 if a topic is missing."""
    return run_coroutine(_main(bus_settings(args.kafka), create=args.create))


async def _main(settings: BusSettings, *, create: bool) -> int:
    async with reaching_broker(settings):
        if create:
            await _partition_counts(settings)  # without a leader, the next line would wait
            await ensure_topics(settings)
        there = await _partition_counts(settings)
        records = await _records(settings, there)
    print(f"{'topic':<24} {'partitions':>10} {'records':>9} {'kept':>6}  holds")
    for topic in TOPICS:
        kept = f"{topic.retention_ms // _HOUR_MS} h"
        found = str(there.get(topic.name, "missing"))
        print(f"{topic.name:<24} {found:>10} {records.get(topic.name, '-'):>9} {kept:>6}  {topic.about}")
    missing = [topic.name for topic in TOPICS if topic.name not in there]
    if missing:
        print("missing topics are created by `railbus topics --create`, and by every service when it starts")
    return 1 if missing else 0


async def _partition_counts(settings: BusSettings) -> Mapping[str, int]:
    there = await cluster_topics(settings)
    there.check_leaders((topic, number) for topic in TOPICS for number in range(there.counts.get(topic.name, 0)))
    return there.counts


async def _records(settings: BusSettings, there: Mapping[str, int]) -> dict[str, int]:
    reader = TailReader(settings, handler=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        counts = {t.name: await _count(reader, t, there[t.name]) for t in TOPICS if t.name in there}
        reading.cancel()
    return counts


async def _count(reader: TailReader, topic: Topic, partitions: int) -> int:
    first = [await reader.begin_offset(topic, partition) for partition in range(partitions)]
    end = [await reader.end_offset(topic, partition) for partition in range(partitions)]
    return sum(end) - sum(first)
