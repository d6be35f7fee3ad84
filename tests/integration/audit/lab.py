"""A lab that starts archivers. A test can compare their archive with all records of the broker."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import ClassVar

from schemas.topics import TOPICS
from services.archive.reader import Archive
from services.archive.store import Store
from services.bus import RawTailReader, StoredRecord
from tests.support.bus import topic_of
from tests.support.lab import Lab
from tests.support.processes import ServiceProcess
from tests.support.request_events import RequestEvents


class ArchiveLab(Lab):
    service: ClassVar[str] = "services.audit"
    folder: Path

    @property
    def archive_folder(self) -> Path:
        return self.folder / "archive"

    def archiver(self, **env: str) -> ServiceProcess:
        """Start an archiver that writes many small files."""
        where = {
            "RAILBUS_ARCHIVE": str(self.archive_folder),
            "RAILBUS_AUDIT_KEY": str(self.folder / "key.pem"),
            "RAILBUS_AUDIT_ANCHORS": str(self.folder / "anchors.jsonl"),
            "RAILBUS_AUDIT_FLUSH_MS": "100",
            "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "2000",
        }
        return self.start(**(where | env))

    def archive(self) -> Archive:
        return Archive(Store(str(self.archive_folder)))

    def archived(self) -> list[StoredRecord]:
        """Return every record in the archive, or an empty list if there is no archive yet."""
        if not (self.archive_folder / "archive.json").exists():
            return []
        archive = self.archive()
        return [record for file in archive.files() for record in archive.records(file)]

    def count(self) -> int:
        """Return the number of records in the archive, according to the metadata of its files."""
        if not (self.archive_folder / "data").exists():
            return 0
        from pyarrow.parquet import read_metadata

        return sum(read_metadata(path).num_rows for path in self.archive_folder.glob("data/*/*/*.parquet"))

    async def on_log(self) -> list[StoredRecord]:
        """Return every record of every topic on the broker."""
        found: list[StoredRecord] = []
        reader = RawTailReader(self.bus, handler=found.extend)
        reading = asyncio.create_task(reader.run())
        ends = {}
        for topic in TOPICS:
            for number in range(topic.partitions(self.partitions)):
                ends[topic, number] = await reader.end_offset(topic, number)
                await reader.follow(topic, number, "beginning")
        await reader.read_through(ends)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return found

    async def ask(self, requests: int, chunks: int = 20) -> None:
        """Write all events of ``requests`` requests, and return when the broker has acknowledged them.

        ``chunks`` is the number of chunks of each answer.
        """
        acks = []
        for _ in range(requests):
            events = RequestEvents()
            said = [events.started(), *(events.chunk(seq) for seq in range(chunks)), events.finished(chunks - 1)]
            said = [events.request, *said, events.attached(), events.detached()]
            acks += [await self.producer.post(topic_of(event), event) for event in said]
        await asyncio.gather(*acks)


def places(records: list[StoredRecord]) -> Counter[tuple[str, int, int]]:
    return Counter((record.topic, record.partition, record.offset) for record in records)
