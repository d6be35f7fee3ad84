"""``railbus dead``: list, show and replay dead letters, which are records that could not be read."""

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

import orjson

from schemas.topics import DEAD, REQUESTS
from services.bus import (
    BusError,
    BusSettings,
    Received,
    TailReader,
    UnreadableRecord,
    cluster_topics,
    partition_counts,
    write_raw_records,
)
from services.cli.common import (
    add_kafka_option,
    bus_settings,
    check_request_id,
    reaching_broker,
    run_coroutine,
    start_position,
    topic_by_name,
)
from services.cli.show.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecord,
    dead_letter_details,
    dead_letter_json,
    dead_letter_line,
    original_record,
    parse_dead_letter,
)
from services.cli.time_spec import StartPosition
from services.runtime.errors import UserError

READ_TIMEOUT_S: Final = 120.0
"""Maximum time for reading all dead letters."""

DEFAULT_LIST_LIMIT: Final = 100
DEFAULT_REPLAY_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
"""Maximum of ``--limit``. The records are kept in memory, and each can be up to a megabyte long."""

MAX_SHOWN_BYTES: Final = 4_096
"""Maximum number of bytes of a value that ``railbus dead show`` prints."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the newest dead letters, one per line, without their contents")
    _filters(listing, DEFAULT_LIST_LIMIT)
    listing.add_argument("--json", action="store_true", help="print one JSON object per line, with the original bytes")
    show = actions.add_parser("show", help="show a dead letter with its contents, which may be personal data")
    show.add_argument("number", type=int, metavar="NUMBER", help="number of the dead letter in `railbus dead list`")
    show.add_argument("--raw", action="store_true", help="write only the original bytes of the record's value")
    add_kafka_option(show)
    replay = actions.add_parser(
        "replay",
        help="write dead letters back to their topics",
        description="Write the original bytes to their topics again, oldest first, for instance after an upgrade that"
        " can read them. A record that still cannot be read becomes a new dead letter. A request that was closed"
        " `rejected` stays closed: its app has to ask again.",
    )
    replay.add_argument(
        "numbers", type=int, nargs="*", metavar="NUMBER", help="dead letters to replay, by their numbers"
    )
    replay.add_argument(
        "--all", action="store_true", help="replay all dead letters that match the filters, up to --limit"
    )
    replay.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    _filters(replay, DEFAULT_REPLAY_LIMIT)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 if ``replay`` finds no dead letter or the user does not confirm the replay."""
    settings = bus_settings(args.kafka)
    match args.action:
        case "list":
            return run_coroutine(_list(args, settings))
        case "show":
            return run_coroutine(_show(args, settings))
        case _:
            return run_coroutine(_replay(args, settings))


def _filters(parser: argparse.ArgumentParser, limit: int) -> None:
    parser.add_argument("--topic", metavar="T", help="only records found on this topic")
    parser.add_argument("--reason", metavar="TEXT", help="only records with this text in the reason")
    parser.add_argument("--request", metavar="ID", help="only records of this request")
    parser.add_argument(
        "--from", dest="moment", metavar="TIME", default="beginning",
        help="only dead letters since this time: an age such as 10m, or a date and time (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--limit",
        type=int,
        default=limit,
        metavar="N",
        help=f"only the newest N dead letters, N at most {MAX_LIMIT} (default: %(default)s)",
    )
    add_kafka_option(parser)


async def _list(args: argparse.Namespace, settings: BusSettings) -> int:
    found, matched = await _read_dead_letters(settings, _filter(args), start_position(args.moment), _limit(args.limit))
    for record in found:
        print(orjson.dumps(dead_letter_json(record)).decode() if args.json else dead_letter_line(record))
    if not args.json:
        more = f"; the newest {len(found)} are shown" if matched > len(found) else ""
        sys.stderr.write(f"{matched} dead letter(s){more}\n")
    return 0


async def _show(args: argparse.Namespace, settings: BusSettings) -> int:
    only = DeadLetterFilter(numbers=frozenset({args.number}))
    found, _ = await _read_dead_letters(settings, only, max(0, args.number), 1)
    if not found:
        raise UserError(f"there is no dead letter {args.number}: `railbus dead list` lists their numbers")
    if args.raw:
        sys.stdout.buffer.write(found[0].value or b"")
        return 0
    for text in dead_letter_details(found[0], MAX_SHOWN_BYTES):
        print(text)
    return 0


async def _replay(args: argparse.Namespace, settings: BusSettings) -> int:
    if bool(args.numbers) == args.all:
        raise UserError("name the dead letters by their numbers, or give --all for everything that the filters leave")
    if len(args.numbers) > MAX_LIMIT:
        raise UserError(f"{len(args.numbers)} numbers are too many: give at most {MAX_LIMIT} at once")
    limit = max(_limit(args.limit), len(args.numbers))
    found, matched = await _read_dead_letters(settings, _filter(args), start_position(args.moment), limit)
    missing = set(args.numbers) - {record.number for record in found}
    if missing:
        raise UserError(f"there is no such dead letter: {', '.join(map(str, sorted(missing)))}")
    if not found:
        sys.stderr.write("no dead letter matches\n")
        return 1
    async with reaching_broker(settings):
        partitions = (await partition_counts(settings)).get(REQUESTS.name, settings.partitions)
    try:
        originals = [original_record(record, partitions) for record in found]
    except ValueError as error:
        raise UserError(f"{error}; leave it out") from None
    for record in found:
        print(dead_letter_line(record))
    if matched > len(found):
        sys.stderr.write(f"{matched} match; only the newest {len(found)} are replayed: see --limit\n")
    if not args.yes and not _confirmed(len(found)):
        return 1
    try:
        positions = await write_raw_records(settings, originals, name="railbus-dead")
    except BusError as error:
        raise UserError(str(error)) from None
    for record, original, position in zip(found, originals, positions, strict=True):
        print(f"{record.number} -> {original.topic} {position.partition}:{position.offset}")
    return 0


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise UserError("standard input is not a terminal, so you cannot confirm: give --yes")
    sys.stderr.write(f"replay {count} record(s)? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


async def _read_dead_letters(
    settings: BusSettings, only: DeadLetterFilter, start: StartPosition | int, limit: int
) -> tuple[list[DeadLetterRecord], int]:
    found: deque[DeadLetterRecord] = deque(maxlen=limit)
    matched = 0

    def take(records: Sequence[Received | UnreadableRecord]) -> None:
        nonlocal matched
        for received in records:
            record = parse_dead_letter(received)
            if record is not None and only.matches(record):
                found.append(record)
                matched += 1

    reader = TailReader(settings, handler=take, include_newer=True)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(reader.run())
        async with reaching_broker(settings):
            there = await cluster_topics(settings)
            if DEAD.name not in there.counts:
                raise UserError(f"there is no topic {DEAD.name}: `railbus topics --create` creates it")
            there.check_leaders([(DEAD, 0)])
            end = await reader.end_offset(DEAD, 0)
            begin = await reader.follow(DEAD, 0, start)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                await reader.read_through({(DEAD, 0): end} if begin < end else {})
        except TimeoutError:
            raise UserError(f"reading took longer than {READ_TIMEOUT_S:.0f} s: begin later with --from") from None
        reading.cancel()
    return list(found), matched


def _filter(args: argparse.Namespace) -> DeadLetterFilter:
    check_request_id(args.request)
    topic = None if args.topic is None else topic_by_name(args.topic).name
    numbers = frozenset(getattr(args, "numbers", ())) or None
    return DeadLetterFilter(topic=topic, reason=args.reason, request_id=args.request, numbers=numbers)


def _limit(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise UserError(f"--limit {limit}: must be 1 to {MAX_LIMIT}")
    return limit
