"""``railbus tail``: print the events on the log, one per line."""

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from schemas.ids import time_ms
from schemas.topics import TOPICS, Topic
from services.bus import BusSettings, Received, TailReader, UnreadableRecord, cluster_topics, partition_for
from services.cli.common import (
    add_kafka_option,
    bus_settings,
    check_request_id,
    reaching_broker,
    request_start,
    run_coroutine,
    start_position,
    topic_by_name,
)
from services.cli.show.event_format import event_json, event_line, event_time_us
from services.cli.time_spec import StartPosition
from services.runtime.errors import UserError

MAX_SORTED: Final = 100_000
"""With ``--no-follow``, about this number of events, the first ones read, are sorted by time before they are printed.
Later events are printed in the order of reading."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_option(parser)
    parser.add_argument("--request", metavar="ID", help="only events of this request")
    parser.add_argument("--topic", action="append", metavar="T", help="only events on this topic; repeatable")
    parser.add_argument(
        "--from", dest="moment", metavar="TIME",
        help="where to start: beginning, end, an age such as 10m, or a date and time (default: end; with --request:"
        " before its first event)",
    )  # fmt: skip
    parser.add_argument("--no-follow", action="store_true", help="exit at the present end of the log")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--show-prompts", action="store_true", help="show prompts, which may contain personal data")


def run(args: argparse.Namespace) -> int:
    """Print the events.

    With ``--no-follow`` and ``--request``, return 1 if no event of the request was found. Otherwise return 0.
    """
    check_request_id(args.request)
    return run_coroutine(_Tail(args, bus_settings(args.kafka)).main())


class _Tail:
    def __init__(self, args: argparse.Namespace, settings: BusSettings) -> None:
        self._args = args
        self._settings = settings
        self._topics = list(TOPICS) if args.topic is None else [topic_by_name(name) for name in args.topic]
        self._start = _start(args.moment, args.request)
        self._key: bytes | None = args.request.encode() if args.request else None
        self._zero_us: int | None = time_ms(args.request) * 1_000 if args.request else None
        self._held: list[Received | UnreadableRecord] = []
        self._received = False

    async def main(self) -> int:
        key = self._key
        record_filter = None if key is None else lambda _, found: found == key
        reader = TailReader(self._settings, handler=self._take, record_filter=record_filter)
        code = 0
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.run())
            ends = await self._begin(reader)
            if self._args.no_follow or key is not None:
                await reader.read_through(ends)
            if key is not None and not self._received:
                code = 1
                self._report_unknown_request()
            if self._args.no_follow:
                self._flush()
                reading.cancel()
        return code

    async def _begin(self, reader: TailReader) -> dict[tuple[Topic, int], int]:
        async with reaching_broker(self._settings):
            there = await cluster_topics(self._settings)
            partitions = _partitions(self._topics, self._args.request, there.counts)
            there.check_leaders(partitions)
            ends = {partition: await reader.end_offset(*partition) for partition in partitions}
            begins = {partition: await reader.follow(*partition, self._start) for partition in partitions}
        return {partition: end for partition, end in ends.items() if begins[partition] < end}

    def _report_unknown_request(self) -> None:
        waiting = "" if self._args.no_follow else "; waiting for it until Ctrl-C"
        sys.stderr.write(
            f"railbus tail: no event of request {self._args.request} is on the log at {self._settings.bootstrap}:"
            f" check the id (`railbus ask` prints it); the log may be younger than the request{waiting}\n"
        )
        sys.stderr.flush()

    def _take(self, records: Sequence[Received | UnreadableRecord]) -> None:
        if self._key is not None:  # records without a kind pass the filter with any key
            records = [record for record in records if isinstance(record, Received) or record.key == self._key]
        self._received = self._received or bool(records)
        if self._args.no_follow and len(self._held) < MAX_SORTED:
            self._held += records
            return
        self._flush()
        for record in records:
            self._print(record)

    def _flush(self) -> None:
        for record in sorted(self._held, key=event_time_us):
            self._print(record)
        self._held.clear()

    def _print(self, record: Received | UnreadableRecord) -> None:
        if self._args.json:
            text = event_json(record, prompts=self._args.show_prompts)
        else:
            if self._zero_us is None:
                self._zero_us = event_time_us(record)
            text = event_line(record, self._zero_us, prompts=self._args.show_prompts)
        sys.stdout.write(text + "\n")
        if not self._args.no_follow:
            sys.stdout.flush()


def _partitions(topics: list[Topic], request_id: str | None, counts: Mapping[str, int]) -> list[tuple[Topic, int]]:
    partitions = []
    for topic in topics:
        count = counts.get(topic.name, 0)
        if request_id is None:
            partitions += [(topic, number) for number in range(count)]
        elif count and topic.key == "request_id":
            partitions.append((topic, partition_for(request_id, count)))
    if not partitions:
        raise UserError("none of these topics exists: `railbus topics --create` creates them")
    return partitions


def _start(moment: str | None, request_id: str | None) -> StartPosition:
    if moment is None:
        return "end" if request_id is None else request_start(request_id)
    return start_position(moment)
