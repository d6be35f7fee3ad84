"""Test that an answer can be resumed even if a producer sent a record with a future timestamp to the same partition.

The broker replaces the producer's timestamp by its own time. So a search by time still finds the answer.
"""

from aiokafka import AIOKafkaProducer

from schemas.topics import REQUESTS, STREAMS
from services.runtime.clock import now_ms
from tests.integration.edge.lab import PARTITIONS

DAY_MS = 86_400_000


async def test_answers_are_resumed_in_the_partition_of_a_record_dated_ahead(lab):
    first, second = await lab.edge(), await lab.edge()
    async with AIOKafkaProducer(bootstrap_servers=lab.bus.bootstrap) as producer:
        for topic in (REQUESTS, STREAMS):
            for partition in range(PARTITIONS):
                await producer.send_and_wait(topic.name, b"x", partition=partition, timestamp_ms=now_ms() + DAY_MS)
    for _ in range(3):
        request, _ = await lab.ask(first)
        async with lab.http.get(f"{second}/v1/requests/{request.request_id}/events") as response:
            assert response.status == 200, await response.text()
            assert b"world" in await response.read()
