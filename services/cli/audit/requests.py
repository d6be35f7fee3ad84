"""Implement the commands ``railbus audit show`` and ``railbus audit replay``."""

import argparse
import sys
from datetime import UTC, datetime

import orjson

from services.bus import Received
from services.cli.audit.page import timeline_page
from services.cli.audit.refold import refold_as_sent
from services.cli.audit.replay import play, replay_lines, visible_at
from services.cli.audit.sources import archived_request, live_request, open_archive
from services.cli.common import bus_settings, run_coroutine
from services.cli.show.event_format import event_json
from services.cli.show.terminal import printable
from services.cli.show.timeline import in_log_order, latency_json, latency_table, receipts, timeline
from services.runtime.errors import UserError
from services.stream.latency import LogEvent, latency


def show(args: argparse.Namespace) -> int:
    """Print a request's events and its latency. Return 0, or 1 if the request has no events."""
    if args.plain_token_ms is not None and not 0 < args.plain_token_ms < 60_000:
        raise UserError(f"--plain-token-ms {args.plain_token_ms:g}: must be between 0 and 60000")
    return run_coroutine(_show(args))


def replay(args: argparse.Namespace) -> int:
    """Print which text the client saw at which time. Return 0, or 1 if the request has no events."""
    if args.speed is not None and not 0 < args.speed <= 1_000_000:
        raise UserError(f"--speed {args.speed:g}: must be more than 0, and at most 1000000")
    return run_coroutine(_replay(args))


async def _show(args: argparse.Namespace) -> int:
    records, sealed = await _records(args)
    if not records:
        return 1
    events = [LogEvent(record.timestamp_ms, record.event) for record in records]
    # Without the sealed events, the times and the comparison with the receipts would be wrong.
    found = None if sealed else latency(args.request, events, plain_token_ms=args.plain_token_ms)
    if args.json:
        body = [orjson.loads(event_json(record, prompts=args.show_prompts)) for record in records]
        shown = {"request_id": args.request, "latency": None if found is None else latency_json(found)}
        print(orjson.dumps(shown if args.only_latency else shown | {"events": body}).decode())
        return 0
    ops, checks = refold_as_sent(args.request, records)
    checks = [] if sealed else checks
    if args.html is not None:
        try:
            args.html.write_text(
                timeline_page(args.request, records, ops, checks, found, sealed=sealed), encoding="utf-8"
            )
        except OSError as error:
            raise UserError(f"--html {args.html}: {error.strerror}") from None
        sys.stderr.write(f"wrote {args.html}: open it in a browser\n")
        return 0
    if not args.only_latency:
        lines = [*timeline(args.request, events, prompts=args.show_prompts), "", *receipts(checks, len(ops))]
        print("\n".join(lines) + "\n")
    if found is not None:
        print("\n".join(latency_table(found)))
    else:
        print(f"{'some events are sealed' if sealed else 'the request is not closed yet'}: no account of its time")
    return 0


async def _replay(args: argparse.Namespace) -> int:
    records, sealed = await _records(args)
    if not records:
        return 1
    if sealed:
        raise UserError("what the client saw is not known without the sealed records")
    zero_ms = records[0].timestamp_ms
    ops, _ = refold_as_sent(args.request, records)
    if args.at is not None:
        text = visible_at(ops, _moment(args.at, zero_ms))
        print(printable(text) if sys.stdout.isatty() else text)
    elif args.speed is not None:
        await play(ops, zero_ms, args.speed)
    else:
        print("\n".join(replay_lines(ops, zero_ms)))
    return 0


async def _records(args: argparse.Namespace) -> tuple[list[Received], int]:
    sealed = 0
    if args.archive is not None:
        archive = open_archive(args.archive, args.keys)
        (records, sealed), where = archived_request(archive, args.request), f"in the archive {args.archive}"
    else:
        settings = bus_settings(args.kafka)
        records, where = await live_request(args.request, settings), f"on the log at {settings.bootstrap}"
    if not records and not sealed:
        sys.stderr.write(
            f"railbus audit: no event of request {args.request} is {where}: check the id (`railbus ask` prints it);"
            f" {'it' if args.archive else 'the log'} may be younger than the request\n"
        )
    if sealed:
        sys.stderr.write(
            f"railbus audit: {sealed} records of request {args.request} are sealed and left out: name the file of"
            " their keys with --keys, unless the keys were destroyed\n"
        )
    return in_log_order(records), sealed


def _moment(text: str, zero_ms: int) -> int:
    if text.startswith("+") and text[1:].isdecimal() and len(text) < 12:
        return zero_ms + int(text[1:])
    try:
        return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1_000)
    except (ValueError, OverflowError):  # OverflowError: in UTC, the year would be below 1 or above 9999
        raise UserError(
            f"--at {text[:64]!r}: write +1500 (milliseconds since the first event) or 2026-01-31T12:00:00.5"
        ) from None
