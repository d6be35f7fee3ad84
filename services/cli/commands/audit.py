"""``railbus audit``: show what happened to a request, and verify archives."""

import argparse
from importlib import import_module
from pathlib import Path
from typing import Final

from services.cli.common import add_kafka_option, check_request_id

ACTIONS: Final = {
    "show": "show a request's events, what its client saw, and how long each step took",
    "replay": "show what the client of a request saw, and when",
    "find": "find requests by tenant, outcome, rule, category, time or text",
    "export": "write records to a Parquet file or as JSON lines",
    "verify": "check an archive: name every record that was edited, inserted, moved or removed",
    "rejudge": "judge recorded prompts and answers by another policy: show which denials, masks and recalls change",
    "forget": "destroy the keys with which the texts of a request or a tenant are encrypted in archives",
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
            "--keys",
            type=Path,
            metavar="FILE",
            help="if texts are encrypted: file of the keys (RAILBUS_AUDIT_SEAL_KEYS)",
        )
    for name in ("find", "export", "rejudge"):
        parsers[name].add_argument(
            "--from",
            dest="from_",
            default="1d",
            metavar="TIME",
            help="start of the time range: an age such as 7d, or a date such as 2026-01-31 (default: %(default)s)",
        )
        parsers[name].add_argument(
            "--to",
            dest="to_",
            default="end",
            metavar="TIME",
            help="end of the time range, in the same form as --from (default: now)",
        )
    _show(parsers["show"])
    _replay(parsers["replay"])
    _find(parsers["find"])
    parsers["export"].add_argument(
        "file", type=Path, metavar="FILE", help="file to create; its name must end with .parquet or .jsonl"
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
    parser.add_argument(
        "--only-latency", action="store_true", help="print only how long each step took, not the events"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with latency and events")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write an HTML page with the timeline to this file instead"
    )
    parser.add_argument("--show-prompts", action="store_true", help="show prompts, which may contain personal data")
    parser.add_argument(
        "--plain-token-ms", type=float, metavar="MS",
        help="time between two tokens without speculation, as `railbus bench engine` measures it; with it, the output"
        " says how much time speculation saved",
    )  # fmt: skip


def _replay(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--at", metavar="TIME",
        help="print only the text on the screen at this time: +1500 (ms after the first event), or a date and time",
    )  # fmt: skip
    how.add_argument("--speed", type=float, metavar="X", help="replay at X times the original speed; 1 is real time")


def _find(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", help="only requests of this tenant")
    parser.add_argument(
        "--outcome",
        help="only requests with this outcome: completed, recalled, denied, failed, cancelled, expired or rejected",
    )
    parser.add_argument("--rule", help="only requests with a recall by this rule")
    parser.add_argument("--category", help="only requests with a recall in this category, such as email")
    parser.add_argument("--text", help="only requests with this text in the prompt or an answer; case is ignored")
    parser.add_argument(
        "--most",
        type=int,
        default=100,
        metavar="N",
        help="maximum number of requests, oldest first (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--archive", metavar="DIR", required=True, help="the archive to check")
    parser.add_argument(
        "--public-key", type=Path, action="append", metavar="FILE",
        help="PEM file of a public key that may have signed the archive; repeatable (default: the key in the archive)",
    )  # fmt: skip
    parser.add_argument(
        "--anchors",
        type=Path,
        action="append",
        metavar="FILE",
        help="file of anchors: checkpoints kept outside the archive",
    )
    parser.add_argument(
        "--write-anchors",
        type=Path,
        metavar="FILE",
        help="if nothing was changed, write the newest checkpoints to this file",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _rejudge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of the policy that judges the recorded traffic",
    )
    parser.add_argument(
        "--labels", type=Path, metavar="FILE",
        help="file of spans that should be recalled, to measure recall and precision: JSON lines"
        ' {"id": REQUEST, "span": [FIRST, END], "category": NAME}',
    )  # fmt: skip
    parser.add_argument(
        "--without-rail",
        action="append",
        metavar="NAME",
        help="leave out this input rail, such as jailbreak; repeatable",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the result as an HTML page to this file instead"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with every difference")


def _forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys", type=Path, required=True, metavar="FILE", help="file of the keys (RAILBUS_AUDIT_SEAL_KEYS)"
    )
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--request", metavar="ID", help="destroy the key of this request")
    whose.add_argument("--tenant", help="destroy the keys of all requests of this tenant")
