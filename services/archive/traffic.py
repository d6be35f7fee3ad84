"""Read recorded events from an archive or a broker, to evaluate them with another policy."""

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Self

from schemas.base import AnyEvent
from schemas.ids import time_ms
from schemas.topics import DAY_MS, Topic
from services.archive.live import live_records
from services.archive.reader import Archive, received
from services.archive.sealing import KeyStore
from services.archive.store import Store
from services.bus import BusSettings
from services.runtime.errors import UserError
from services.runtime.settings import load_settings
from services.runtime.task_groups import first_error

MAX_CLOCK_SKEW_MS: Final = 60_000
"""How much later the time in a request's id may be than the append time of its first record, in milliseconds."""

LATEST_MS: Final = 32 * DAY_MS
"""How much later than the time in its id a request may have its last event, in milliseconds. The ids of the requests of
a job have the time at which the job was made. It may run for 30 days, and its last request may be open for a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The place from which recorded events are read, and the time range of the requests.

    Attributes:
        archive: The archive to read; None to read from a broker.
        kafka: The broker, ``HOST:PORT``; None for the broker that the environment names.
        from_ms: Start of the time range, in milliseconds since the epoch.
        to_ms: End of the time range, exclusive.
    """

    archive: Archive | None
    kafka: str | None = None
    from_ms: int = 0
    to_ms: int = 2**47

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Create an instance from command-line options.

        Raises:
            UserError: The archive or the file of its keys does not exist or cannot be read.
        """
        keys = None if args.keys is None else KeyStore(args.keys)
        archive = None if args.archive is None else Archive(Store(args.archive), keys)
        return cls(archive=archive, kafka=args.kafka, from_ms=args.from_ms, to_ms=args.to_ms)

    def wants(self, request_id: str) -> bool:
        return self.from_ms <= time_ms(request_id) < self.to_ms

    async def events(
        self, topics: Sequence[Topic], kinds: Collection[str] | None = None
    ) -> AsyncIterator[tuple[int, list[AnyEvent]]]:
        """Yield pairs of a partition number and a list of events from this partition.

        Some events belong to requests outside the time range. The caller must skip them with ``wants``.
        """
        since_ms = max(0, self.from_ms - MAX_CLOCK_SKEW_MS)
        if self.archive is None:
            records = await live_records(self._bus, since_ms, topics)
            for partition, own in groupby(records, key=lambda record: record.partition):
                events = [event.event for record in own if (event := received(record)) is not None]
                yield partition, [each for each in events if kinds is None or type(each).__name__ in kinds]
            return
        until_ms = min(int(self.to_ms) + LATEST_MS, 2**52)
        for file in self.archive.files([topic.name for topic in topics], since_ms, until_ms):
            if not self.archive.has_requests_before(file, self.to_ms):
                continue
            for found in self.archive.events(file, kinds):
                yield file.partition, found

    @property
    def _bus(self) -> BusSettings:
        named = {"RAILBUS_KAFKA_BOOTSTRAP": self.kafka} if self.kafka else {}
        return load_settings(BusSettings, {**os.environ, **named})


def add_traffic_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy", type=Path, required=True, help="folder of the policy that judges the recorded traffic"
    )
    parser.add_argument("--archive", help="archive to read (default: read the topics of --kafka)")
    parser.add_argument("--keys", type=Path, help="file of the archiver's keys, if texts in the archive are encrypted")
    parser.add_argument("--kafka", help="address of the broker, HOST:PORT")
    parser.add_argument(
        "--from-ms",
        type=int,
        default=0,
        help="only requests whose id has this time or a later one, in ms since 1970 (default: %(default)s)",
    )
    parser.add_argument(
        "--to-ms",
        type=int,
        default=2**47,
        help="only requests whose id has an earlier time than this, in ms since 1970 (default: no limit)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_rejudge(work: Coroutine[Any, Any, int]) -> int:
    """Run the coroutine and return its exit code. For a ``UserError``, print the message and return 2."""
    try:
        return asyncio.run(work)
    except* UserError as mistakes:
        sys.stderr.write(f"railbus audit: {first_error(mistakes)}\n")
    return 2
