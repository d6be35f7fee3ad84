import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from schemas.topics import TOPICS, Topic
from services.bus import (
    BusSettings,
    Received,
    StoredRecord,
    TailReader,
    UnreadableRecord,
    cluster_topics,
    partition_for,
)
from services.cli.common import reaching_broker, request_start
from services.cli.show.timeline import belongs_to
from services.runtime.errors import UserError

if TYPE_CHECKING:
    from services.archive.reader import Archive

MAX_EVENTS: Final = 200_000
"""Maximum number of events of one request. A usual request has at most one event for each token, and a few others."""


def open_archive(location: str, keys: Path | None = None) -> "Archive":
    """Open an archive. Without ``keys``, encrypted values are not read.

    Raises:
        UserError: There is no archive, the archive's format is too new for this version of Railbus, or the extra
            ``audit`` is not installed.
    """
    from services.archive.reader import Archive
    from services.archive.sealing import KeyStore
    from services.archive.store import Store

    return Archive(Store(location), None if keys is None else KeyStore(keys))


def archived_request(archive: "Archive", request_id: str) -> tuple[list[Received], int]:
    """Read a request's events from an archive. Return them, and the number of records that cannot be decrypted.

    Raises:
        UserError: The request has more than ``MAX_EVENTS`` events.
    """
    from services.archive.reader import received

    found: list[Received] = []
    sealed = 0
    for record in archive.request(request_id):
        sealed += record.value is None
        event = received(record)
        if event is not None and belongs_to(request_id, event):
            found.append(event)
            check_count(request_id, found)
    return found, sealed


async def live_request(request_id: str, settings: BusSettings) -> list[Received]:
    """Read a request's events from the broker.

    Raises:
        UserError: The request has more than ``MAX_EVENTS`` events, a partition that may have its events has no leader,
            or the broker cannot be reached.
    """
    found: list[Received] = []

    def take(records: Sequence[Received | UnreadableRecord]) -> None:
        found.extend(each for each in records if isinstance(each, Received) and belongs_to(request_id, each))
        check_count(request_id, found)

    key = request_id.encode()
    reader = TailReader(settings, handler=take, record_filter=lambda _, found_key: found_key == key)
    start = request_start(request_id)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        async with reaching_broker(settings):
            there = await cluster_topics(settings)
            partitions = [
                (topic, partition_for(request_id, count))
                for topic in TOPICS
                if topic.key == "request_id" and (count := there.counts.get(topic.name, 0))
            ]
            there.check_leaders(partitions)
            ends: dict[tuple[Topic, int], int] = {}
            for partition in partitions:
                end = await reader.end_offset(*partition)
                if await reader.follow(*partition, start) < end:
                    ends[partition] = end
        await reader.read_through(ends)
        reading.cancel()
    return found


def check_count(request_id: str, found: Sequence[Received]) -> None:
    if len(found) > MAX_EVENTS:
        raise UserError(f"request {request_id} has more than {MAX_EVENTS} events: something writes it in a loop")


def archived_records(archive: "Archive", from_ms: int, to_ms: int) -> Iterator[StoredRecord]:
    """Yield an archive's records with ``from_ms`` <= timestamp < ``to_ms``."""
    for file in archive.files(from_ms=from_ms, to_ms=to_ms):
        yield from archive.records(file, from_ms, to_ms)
