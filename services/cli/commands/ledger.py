"""``railbus ledger``: show the usage and costs that the service ``ledger`` has published for a recent period."""

import argparse
import asyncio
import re
from collections.abc import Sequence
from typing import Final

import orjson

from schemas.side_events import Window
from schemas.topics import LEDGER
from services.books import WindowKey, attainments, json_rows, key_of, merge, table
from services.bus import AtTime, BusSettings, Received, TailReader, UnreadableRecord, cluster_topics
from services.cli.common import add_kafka_option, bus_settings, reaching_broker, run_coroutine
from services.runtime.clock import now_ms
from services.runtime.errors import UserError

MAX_WINDOWS: Final = 500_000
"""Maximum number of windows that are added up."""

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LENGTH: Final = re.compile(r"([1-9][0-9]{0,6})([smhd])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_kafka_option(parser)
    parser.add_argument(
        "--window",
        default="1h",
        metavar="LENGTH",
        help="period up to now, such as 10m, 1h or 7d (default: %(default)s)",
    )
    parser.add_argument("--tenant", help="only requests of this tenant")
    parser.add_argument("--json", action="store_true", help="print one JSON object with sums and histogram buckets")


def run(args: argparse.Namespace) -> int:
    """Print the ledger's sums for a recent period. Return 1 if there are none for this period and tenant, else 0."""
    return run_coroutine(_show(args, bus_settings(args.kafka), length_ms(args.window)))


def length_ms(text: str) -> int:
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise UserError(f"--window {text[:64]!r}: must be a length such as 90s, 10m, 1h or 7d")
    return int(match[1]) * _UNITS_MS[match[2]]


async def _show(args: argparse.Namespace, settings: BusSettings, back_ms: int) -> int:
    until_ms = now_ms()
    since_at, until_at = (until_ms - back_ms) * 1_000, until_ms * 1_000
    found = await _windows(settings, until_ms - back_ms)
    windows = [window for window in found if window.end_at > since_at and args.tenant in {None, window.tenant}]
    if args.json:
        print(orjson.dumps(json_rows(windows, since_at=since_at, until_at=until_at)).decode())
    else:
        lines = table(merge(windows))
        if classes := attainments(windows):
            lines += ["", "objectives of each class:", *(f"  {each.line()}" for each in classes)]
        print("\n".join(lines))
    return 0 if windows else 1


async def _windows(settings: BusSettings, since_ms: int) -> list[Window]:
    found: dict[WindowKey, Window] = {}  # the newest of each, because a window is published each time that it changes

    def take(records: Sequence[Received | UnreadableRecord]) -> None:
        for each in records:
            if isinstance(each, Received) and isinstance(each.event, Window):
                found[key_of(each.event)] = each.event
        if len(found) > MAX_WINDOWS:
            raise UserError(f"this time has more than {MAX_WINDOWS} windows: take a shorter --window")

    reader = TailReader(settings, handler=take)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        ends = {}
        async with reaching_broker(settings):
            there = await cluster_topics(settings)
            if LEDGER.name in there.counts:
                there.check_leaders([(LEDGER, 0)])
                end = await reader.end_offset(LEDGER, 0)
                if await reader.follow(LEDGER, 0, AtTime(since_ms)) < end:
                    ends[LEDGER, 0] = end
        await reader.read_through(ends)
        reading.cancel()
    return list(found.values())
