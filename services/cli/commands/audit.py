"""``railbus audit``: what happened to a request, what its client saw, and where its time went."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Final

import orjson

from schemas.topics import TOPICS, Topic
from services.bus import BusSettings, Received, TailReader, UnreadableRecord, partition_counts, partition_for
from services.cli.common import (
    add_kafka_option,
    bus_settings,
    check_request_id,
    reaching_broker,
    read_through,
    request_start,
    run_coroutine,
)
from services.cli.show.event_format import event_json
from services.cli.show.timeline import belongs_to, in_log_order, latency_json, latency_table, receipts, timeline
from services.runtime.errors import UserError
from services.stream.latency import LogEvent, latency

MAX_EVENTS: Final = 200_000
"""Most events of one request; a request has at most one for each token, and a few."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="one request: its events, what its client saw, where its time went")
    show.add_argument("request", metavar="ID", help="the request's id, as `railbus ask` prints it")
    add_kafka_option(show)
    show.add_argument("--only-latency", action="store_true", help="leave the events out")
    show.add_argument("--json", action="store_true", help="one JSON object: latency and events")
    show.add_argument("--show-prompts", action="store_true", help="show prompts; they may be personal")
    show.add_argument(
        "--plain-token-ms", type=float, metavar="MS",
        help="time between two tokens without speculation (`railbus bench engine` measures it): shows what it earned",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Return 0; 1 when the request is not on the log."""
    check_request_id(args.request)
    if args.plain_token_ms is not None and not 0 < args.plain_token_ms < 60_000:
        raise UserError(f"--plain-token-ms {args.plain_token_ms:g}: must be between 0 and 60000")
    return run_coroutine(_show(args, bus_settings(args.kafka)))


async def _show(args: argparse.Namespace, settings: BusSettings) -> int:
    records = await _records(args.request, settings)
    if not records:
        sys.stderr.write(
            f"railbus audit: no event of request {args.request} is on the log at {settings.bootstrap}: check the id"
            " (`railbus ask` prints it); the log may be younger than the request\n"
        )
        return 1
    records = in_log_order(records)
    events = [LogEvent(record.timestamp_ms, record.event) for record in records]
    found = latency(args.request, events, plain_token_ms=args.plain_token_ms)
    if args.json:
        body = [orjson.loads(event_json(record, prompts=args.show_prompts)) for record in records]
        shown = {"request_id": args.request, "latency": None if found is None else latency_json(found)}
        print(orjson.dumps(shown if args.only_latency else shown | {"events": body}).decode())
        return 0
    if not args.only_latency:
        lines = [*timeline(args.request, events, prompts=args.show_prompts), "", *receipts(args.request, events)]
        print("\n".join(lines) + "\n")
    print(
        "\n".join(latency_table(found))
        if found is not None
        else "the request is not closed yet: no account of its time"
    )
    return 0


async def _records(request_id: str, settings: BusSettings) -> list[Received]:
    """Return all events of a request that are on the log now.

    Raises:
        UserError: There are more than ``MAX_EVENTS``, or the broker cannot be reached.
    """
    found: list[Received] = []

    def take(records: Sequence[Received | UnreadableRecord]) -> None:
        found.extend(each for each in records if isinstance(each, Received) and belongs_to(request_id, each))
        if len(found) > MAX_EVENTS:
            raise UserError(f"request {request_id} has more than {MAX_EVENTS} events: something writes it in a loop")

    key = request_id.encode()
    reader = TailReader(settings, handler=take, record_filter=lambda _, found_key: found_key == key)
    start = request_start(request_id)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        async with reaching_broker(settings):
            counts = await partition_counts(settings)
            ends: dict[tuple[Topic, int], int] = {}
            for topic in TOPICS:
                if topic.key == "request_id" and counts.get(topic.name, 0):
                    partition = (topic, partition_for(request_id, counts[topic.name]))
                    end = await reader.end_offset(*partition)
                    if await reader.follow(*partition, start) < end:
                        ends[partition] = end
        await read_through(reader, ends)
        reading.cancel()
    return found
