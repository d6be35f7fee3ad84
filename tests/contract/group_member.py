"""Run a member of a consumer group as a separate process, so that a test can kill it.

    python -m tests.contract.group_member ADDRESS GROUP TOPIC SESSION_MS

When the member gets partitions, it prints a line such as `assigned 0,2`. For each record, it prints `read VALUE`. It
never commits an offset.
"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition


class _Announcer(ConsumerRebalanceListener):
    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        print("assigned", ",".join(str(p.partition) for p in sorted(assigned)), flush=True)


async def main(address: str, group: str, topic: str, session_ms: str) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=200,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([topic], listener=_Announcer())
    async with consumer:
        async for record in consumer:
            print("read", record.value.decode(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
