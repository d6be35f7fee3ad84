"""``railbus tail``: events as they stand on the log, one a line."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from schemas.ids import is_uuid7, time_ms
from schemas.topics import TOPIC_NAMED, TOPICS, Topic
from services.bus import AtTime, BusSettings, Received, TailReader, Unread, partition_counts, partition_for
from services.cli.command import add_kafka, bus_settings, run_coroutine
from services.cli.lines import at_us, json_line, line
from services.cli.moments import Where, parse_moment
from services.runtime.clock import now_ms
from services.runtime.errors import UserError

MAX_SORTED: Final = 100_000
"""With ``--no-follow`` so many events are put in the order of time before they are shown; the rest as they come."""

SKEW_MS: Final = 60_000
"""How far the clock of whoever made the request id may be ahead of the broker's."""

REACH_S: Final = 15.0
"""Longest time to wait for the broker."""

POLL_S: Final = 0.02
"""How often it looks whether everything that was there has been read."""


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    add_kafka(parser)
    parser.add_argument("--request", metavar="ID", help="only this request")
    parser.add_argument("--topic", action="append", metavar="T", help="only this topic; may be given several times")
    parser.add_argument(
        "--from", dest="moment", metavar="TIME",
        help="beginning, end, 10m (ago) or a date and time (default: end; with --request: when it was asked)",
    )  # fmt: skip
    parser.add_argument("--no-follow", action="store_true", help="end with what is on the log now")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--show-prompts", action="store_true", help="show what was asked; it may be personal")


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 130 after Ctrl-C."""
    if args.request is not None and not is_uuid7(args.request):
        raise UserError(f"--request {args.request[:64]!r}: must be a UUIDv7 in lower case, as `railbus ask` prints it")
    return run_coroutine(_Tail(args, bus_settings(args.kafka)).main())


class _Tail:
    """One run of the command."""

    def __init__(self, args: argparse.Namespace, settings: BusSettings) -> None:
        self._args = args
        self._settings = settings
        self._topics = _chosen(args.topic)
        self._start = _start(args.moment, args.request)
        self._key: bytes | None = args.request.encode() if args.request else None
        self._zero_us: int | None = time_ms(args.request) * 1_000 if args.request else None
        self._held: list[Received | Unread] = []

    async def main(self) -> int:
        """Reads until Ctrl-C, or until everything that was there is shown."""
        key = self._key
        wants = None if key is None else lambda _, found: found == key
        reader = TailReader(self._settings, handler=self._take, wants=wants)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reader.run())
            ends = await self._begin(reader)
            if self._args.no_follow:
                await _reached(reader, ends)
                self._flush()
                reading.cancel()
        return 0

    async def _begin(self, reader: TailReader) -> dict[tuple[Topic, int], int]:
        """Follows every partition that can hold what is asked for; the end of each, where there is more to come."""
        places = []
        try:
            async with asyncio.timeout(REACH_S):
                there = await partition_counts(self._settings)
                places = _places(self._topics, self._args.request, there)
                ends = {place: await reader.end_offset(*place) for place in places}
                begins = {place: await reader.follow(*place, self._start) for place in places}
        except TimeoutError:
            raise UserError(
                f"the broker at {self._settings.bootstrap} does not answer: start it, or name another with --kafka"
            ) from None
        return {place: end for place, end in ends.items() if begins[place] < end}

    def _take(self, records: Sequence[Received | Unread]) -> None:
        if self._key is not None:  # what has no kind comes unasked
            records = [record for record in records if isinstance(record, Received) or record.key == self._key]
        if self._args.no_follow and len(self._held) < MAX_SORTED:
            self._held += records
            return
        self._flush()
        for record in records:
            self._print(record)

    def _flush(self) -> None:
        for record in sorted(self._held, key=at_us):
            self._print(record)
        self._held.clear()

    def _print(self, record: Received | Unread) -> None:
        if self._args.json:
            text = json_line(record, prompts=self._args.show_prompts)
        else:
            if self._zero_us is None:
                self._zero_us = at_us(record)
            text = line(record, self._zero_us, prompts=self._args.show_prompts)
        sys.stdout.write(text + "\n")
        if not self._args.no_follow:
            sys.stdout.flush()


async def _reached(reader: TailReader, ends: dict[tuple[Topic, int], int]) -> None:
    while any((reader.position(*place) or 0) < end for place, end in ends.items()):  # noqa: ASYNC110 - the bus has no event for it
        await asyncio.sleep(POLL_S)


def _places(topics: list[Topic], request_id: str | None, there: dict[str, int]) -> list[tuple[Topic, int]]:
    """Topic and partition of everything to be followed; a request stands in one partition of each topic."""
    places = []
    for topic in topics:
        count = there.get(topic.name, 0)
        if request_id is None:
            places += [(topic, partition) for partition in range(count)]
        elif count and topic.key == "request_id":
            places.append((topic, partition_for(request_id, count)))
    if not places:
        raise UserError("none of the topics is there: `railbus topics --create` makes them")
    return places


def _chosen(names: list[str] | None) -> list[Topic]:
    if names is None:
        return list(TOPICS)
    chosen = []
    for name in names:
        topic = TOPIC_NAMED.get(name) or TOPIC_NAMED.get(f"railbus.{name}")
        if topic is None:
            raise UserError(f"--topic {name[:64]!r}: must be one of {', '.join(TOPIC_NAMED)}")
        chosen.append(topic)
    return chosen


def _start(moment: str | None, request_id: str | None) -> Where:
    if moment is None:
        return "end" if request_id is None else AtTime(max(0, time_ms(request_id) - SKEW_MS))
    try:
        return parse_moment(moment, now_ms())
    except ValueError as error:
        raise UserError(f"--from {error}") from None
