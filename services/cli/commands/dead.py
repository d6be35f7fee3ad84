"""``railbus dead``: records that nobody could read: list them, look at one, put them back."""

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

import orjson

from schemas.ids import is_uuid7
from schemas.topics import DEAD, TOPIC_NAMED
from services.bus import BusError, BusSettings, Received, TailReader, Unread, partition_counts, put_raw
from services.cli.command import add_kafka, bus_settings, run_coroutine
from services.cli.letters import Grave, Wanted, as_json, grave, line, page, put_back
from services.cli.moments import Where, parse_moment
from services.runtime.clock import now_ms
from services.runtime.errors import UserError

REACH_S: Final = 15.0
"""Longest time to wait for the broker."""

READ_S: Final = 120.0
"""Longest time for reading them all."""

POLL_S: Final = 0.02
"""How often it looks whether everything that was there has been read."""

MOST_LISTED: Final = 100
MOST_REPLAYED: Final = 100
MOST_AT_ONCE: Final = 1_000
"""Bound of ``--limit``: so many are held in memory, of up to a megabyte each."""

SHOWN_BYTES: Final = 4_096
"""Bytes of a value that ``show`` prints."""


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the newest ones, one a line, without their contents")
    _filters(listing, MOST_LISTED)
    listing.add_argument("--json", action="store_true", help="one JSON object a line, with the original bytes")
    show = actions.add_parser("show", help="all of one, with its contents; they may be personal")
    show.add_argument("number", type=int, metavar="NUMBER", help="as `railbus dead list` says it")
    show.add_argument("--raw", action="store_true", help="nothing but the original bytes of its value")
    add_kafka(show)
    replay = actions.add_parser(
        "replay",
        help="put the original bytes back where they were found",
        description="Puts the original bytes back on their topics, oldest first, for instance after an upgrade that"
        " can read them. What still cannot be read comes back as a new dead letter. A request that was closed"
        " `rejected` stays closed: its app has to ask again.",
    )
    replay.add_argument("numbers", type=int, nargs="*", metavar="NUMBER", help="these; or all that the filters leave")
    replay.add_argument("--all", action="store_true", help="everything that the filters leave, up to --limit")
    replay.add_argument("--yes", action="store_true", help="do not ask")
    _filters(replay, MOST_REPLAYED)


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 when there is none such, or when the operator says no."""
    settings = bus_settings(args.kafka)
    match args.action:
        case "list":
            return run_coroutine(_list(args, settings))
        case "show":
            return run_coroutine(_show(args, settings))
        case _:
            return run_coroutine(_replay(args, settings))


def _filters(parser: argparse.ArgumentParser, limit: int) -> None:
    parser.add_argument("--topic", metavar="T", help="only those found on this topic")
    parser.add_argument("--reason", metavar="TEXT", help="only those with this text in their reason")
    parser.add_argument("--request", metavar="ID", help="only those about this request")
    parser.add_argument(
        "--from", dest="moment", metavar="TIME", default="beginning",
        help="only those put there since: 10m (ago), or a date and time",
    )  # fmt: skip
    parser.add_argument(
        "--limit", type=int, default=limit, metavar="N", help=f"the newest N, at most {MOST_AT_ONCE} (%(default)s)"
    )
    add_kafka(parser)


async def _list(args: argparse.Namespace, settings: BusSettings) -> int:
    found, matched = await _graves(settings, _wanted(args), _start(args.moment), _limit(args.limit))
    for it in found:
        print(orjson.dumps(as_json(it)).decode() if args.json else line(it))
    if not args.json:
        more = f"; the newest {len(found)} are shown" if matched > len(found) else ""
        sys.stderr.write(f"{matched} dead letter(s){more}\n")
    return 0


async def _show(args: argparse.Namespace, settings: BusSettings) -> int:
    found, _ = await _graves(settings, Wanted(numbers=frozenset({args.number})), max(0, args.number), 1)
    if not found:
        raise UserError(f"there is no dead letter {args.number}: `railbus dead list` says which there are")
    if args.raw:
        sys.stdout.buffer.write(found[0].value or b"")
        return 0
    for text in page(found[0], SHOWN_BYTES):
        print(text)
    return 0


async def _replay(args: argparse.Namespace, settings: BusSettings) -> int:
    if bool(args.numbers) == args.all:
        raise UserError("say which: their numbers, or --all for everything that the filters leave")
    found, matched = await _graves(settings, _wanted(args), _start(args.moment), _limit(args.limit))
    missing = set(args.numbers) - {it.number for it in found}
    if missing:
        raise UserError(f"there is no such dead letter: {', '.join(map(str, sorted(missing)))}")
    if not found:
        sys.stderr.write("there are none such\n")
        return 1
    try:
        records = [put_back(it, settings.partitions) for it in found]
    except ValueError as error:
        raise UserError(f"{error}; leave it out") from None
    for it in found:
        print(line(it))
    if matched > len(found):
        sys.stderr.write(f"{matched} match; only the newest {len(found)} are put back: see --limit\n")
    if not args.yes and not _agreed(len(found)):
        return 1
    try:
        places = await put_raw(settings, records, name="railbus-dead")
    except BusError as error:
        raise UserError(str(error)) from None
    for it, record, place in zip(found, records, places, strict=True):
        print(f"{it.number} -> {record.topic} {place.partition}:{place.offset}")
    return 0


def _agreed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UserError("nobody is there to agree: say --yes")
    sys.stderr.write(f"put {count} record(s) back? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


async def _graves(settings: BusSettings, wanted: Wanted, start: Where | int, limit: int) -> tuple[list[Grave], int]:
    """The newest graves that are wanted, oldest first, and how many are."""
    found: deque[Grave] = deque(maxlen=limit)
    matched = 0

    def take(records: Sequence[Received | Unread]) -> None:
        nonlocal matched
        for record in records:
            it = grave(record)
            if it is not None and wanted.has(it):
                found.append(it)
                matched += 1

    reader = TailReader(settings, handler=take, newer=True)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        try:
            async with asyncio.timeout(REACH_S):
                if DEAD.name not in await partition_counts(settings):
                    raise UserError(f"there is no topic {DEAD.name}: `railbus topics --create` makes it")
                end = await reader.end_offset(DEAD, 0)
                begin = await reader.follow(DEAD, 0, start)
        except TimeoutError:
            raise UserError(
                f"the broker at {settings.bootstrap} does not answer: start it, or name another with --kafka"
            ) from None
        try:
            async with asyncio.timeout(READ_S):
                while begin < end and (reader.position(DEAD, 0) or 0) < end:  # noqa: ASYNC110 - the bus has no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise UserError(f"reading took longer than {READ_S:.0f} s: begin later with --from") from None
        reading.cancel()
    return list(found), matched


def _wanted(args: argparse.Namespace) -> Wanted:
    topic, request_id = args.topic, args.request
    if topic is not None and topic not in TOPIC_NAMED:
        topic = f"railbus.{topic}"
        if topic not in TOPIC_NAMED:
            raise UserError(f"--topic {args.topic[:64]!r}: must be one of {', '.join(TOPIC_NAMED)}")
    if request_id is not None and not is_uuid7(request_id):
        raise UserError(f"--request {request_id[:64]!r}: must be a UUIDv7 in lower case")
    numbers = frozenset(getattr(args, "numbers", ())) or None
    return Wanted(topic=topic, reason=args.reason, request_id=request_id, numbers=numbers)


def _start(moment: str) -> Where:
    try:
        return parse_moment(moment, now_ms())
    except ValueError as error:
        raise UserError(f"--from {error}") from None


def _limit(limit: int) -> int:
    if not 1 <= limit <= MOST_AT_ONCE:
        raise UserError(f"--limit {limit}: must be 1 to {MOST_AT_ONCE}")
    return limit
