"""Records put back on a topic as they were: bytes that need not be an event."""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from services.bus.errors import NotSent
from services.bus.kafka import open_producer, put_away_producer
from services.bus.records import Position
from services.bus.settings import BusSettings

ACK_S: Final = 15.0
"""Longest wait for the broker's word on one record."""


class Raw(NamedTuple):
    """One record: where it goes, and its bytes."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


async def put_raw(settings: BusSettings, records: Sequence[Raw], *, name: str) -> list[Position]:
    """Writes them one after another, and says where each one stands; ``name`` is the client id.

    Raises:
        NotSent: The broker did not take one; those before it are written.
        UserError: The broker refuses the credentials.
    """
    producer = await open_producer(settings, name)
    written: list[Position] = []
    try:
        for record in records:
            place = f"{record.topic}[{record.partition}]"
            try:
                async with asyncio.timeout(ACK_S):
                    sent = await producer.send_and_wait(
                        record.topic, record.value, record.key, record.partition, headers=list(record.headers)
                    )
            except (KafkaError, TimeoutError, AssertionError) as error:
                why = str(error) or type(error).__name__
                raise NotSent(f"{place}: the broker did not take the record: {why}") from None
            written.append(Position(record.partition, sent.offset))
    finally:
        await put_away_producer(producer)
    return written
