import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from services.bus.errors import NotAcknowledged
from services.bus.kafka.clients import close_producer, open_producer
from services.bus.records import Position
from services.bus.settings import BusSettings

ACK_S: Final = 15.0
"""Maximum time in seconds to wait for the acknowledgement of one record."""


class RawRecord(NamedTuple):
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


async def write_raw_records(settings: BusSettings, records: Sequence[RawRecord], *, name: str) -> list[Position]:
    """Write records one after another, and return their positions. The records need not be valid events.

    ``name`` is the Kafka client id.

    Raises:
        NotAcknowledged: The broker did not acknowledge a record. The records before it are written.
        UserError: The broker refuses the credentials, or does not let this user write.
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
                raise NotAcknowledged(f"{place}: the broker did not take the record: {why}") from None
            written.append(Position(record.partition, sent.offset))
    finally:
        await close_producer(producer)
    return written
