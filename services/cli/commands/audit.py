"""``railbus audit``: show what happened to a request, and verify archives."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Final

from services.cli.common import add_kafka_option, check_request_id

ACTIONS: Final = {
    "show": "one request: its events, what its client saw, where its time went",
    "replay": "one request: what its client saw, when",
    "find": "requests by tenant, outcome, rule, category, time or text",
    "export": "write records to a Parquet file or as JSON lines",
    "verify": "check an archive: name every edit, drop, reorder and cut tail",
    "rejudge": "judge old traffic by another policy: which denials, masks and recalls change",
    "forget": "destroy the keys of a request's or a tenant's sealed texts",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    parsers = {name: actions.add_parser(name, help=about) for name, about in ACTIONS.items()}
    for name in ("show", "replay"):
        parsers[name].add_argument("request", metavar="ID", help="the request's id, as `railbus ask` prints it")
    for name in ("show", "replay", "find", "export", "rejudge"):
        add_kafka_option(parsers[name])
        parsers[name].add_argument("--archive", metavar="DIR", help="read this archive instead of the topics")
        parsers[name].add_argument(
            "--keys", type=Path, metavar="FILE", help="the archiver's RAILBUS_AUDIT_SEAL_KEYS, if texts are sealed"
        )
    for name in ("find", "export", "rejudge"):
        parsers[name].add_argument(
            "--from", dest="from_", default="1d", metavar="TIME", help="from this time on: 7d, 2026-01-31 (%(default)s)"
        )
        parsers[name].add_argument("--to", dest="to_", default="end", metavar="TIME", help="before this time (now)")
    _show(parsers["show"])
    _replay(parsers["replay"])
    _find(parsers["find"])
    parsers["export"].add_argument(
        "file", type=Path, metavar="FILE", help="a new file; its name ends with .parquet or .jsonl"
    )
    _verify(parsers["verify"])
    _rejudge(parsers["rejudge"])
    _forget(parsers["forget"])


def run(args: argparse.Namespace) -> int:
    if args.action in {"show", "replay"}:
        check_request_id(args.request)
        module = import_module("services.cli.audit.requests")
    else:
        module = import_module("services.cli.audit.archives")
    return int(getattr(module, args.action)(args))


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only-latency", action="store_true", help="leave the events out")
    parser.add_argument("--json", action="store_true", help="one JSON object: latency and events")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the timeline to this file")
    parser.add_argument("--show-prompts", action="store_true", help="show prompts; they may be personal")
    parser.add_argument(
        "--plain-token-ms", type=float, metavar="MS",
        help="time between two tokens without speculation (`railbus bench engine` measures it): shows what it earned",
    )  # fmt: skip


def _replay(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--at", metavar="TIME",
        help="only the text that was on the screen then: +1500 (milliseconds since the first event), or a date",
    )  # fmt: skip
    how.add_argument("--speed", type=float, metavar="X", help="play it X times as fast as it was; 1 is real time")


def _find(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", help="of this tenant")
    parser.add_argument("--outcome", help="that ended so: completed, recalled, denied, failed, cancelled, expired")
    parser.add_argument("--rule", help="with a recall of this rule")
    parser.add_argument("--category", help="with a recall of this category")
    parser.add_argument("--text", help="with this text in the prompt or an answer, in upper or lower case")
    parser.add_argument(
        "--most", type=int, default=100, metavar="N", help="at most so many, oldest first (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--archive", metavar="DIR", required=True, help="the archive to check")
    parser.add_argument(
        "--public-key", type=Path, action="append", metavar="FILE",
        help="PEM file of a key that may have signed it; without one, the key that the archive itself names",
    )  # fmt: skip
    parser.add_argument(
        "--anchors", type=Path, action="append", metavar="FILE", help="checkpoints that were kept elsewhere"
    )
    parser.add_argument("--write-anchors", type=Path, metavar="FILE", help="write the newest checkpoints to this file")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _rejudge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", type=Path, required=True, metavar="DIR", help="folder of the policy to judge by")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE",
        help='JSON lines {"id": REQUEST, "span": [FIRST, END], "category": NAME}: shows recall and precision',
    )  # fmt: skip
    parser.add_argument(
        "--without-rail", action="append", metavar="NAME", help="do not ask this input rail again, such as jailbreak"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page about it to this file instead")
    parser.add_argument("--json", action="store_true", help="one JSON object with every difference")


def _forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys", type=Path, required=True, metavar="FILE", help="the archiver's RAILBUS_AUDIT_SEAL_KEYS"
    )
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--request", metavar="ID", help="of this request")
    whose.add_argument("--tenant", help="of all requests of this tenant")
