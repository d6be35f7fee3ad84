"""Functions that run ``railbus audit find``, ``export``, ``verify``, ``rejudge`` and ``forget``."""

import argparse
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from schemas.topics import TOPICS
from services.archive.checkpoint import ChainCheckpoint, anchors_json
from services.archive.keys import Verifier
from services.archive.live import live_records
from services.archive.reader import Archive
from services.archive.sealing import KeyStore
from services.archive.verify import MAX_FINDINGS, read_anchors
from services.archive.verify import verify as verify_archive
from services.bus import AtTime, StoredRecord
from services.cli.audit.export import export_records
from services.cli.audit.find import ArchivedRequest, Wanted, find_in_archive, find_in_records
from services.cli.audit.rejudge_page import rejudge_page
from services.cli.audit.sources import archived_records, open_archive
from services.cli.common import bus_settings, check_request_id, run_coroutine
from services.cli.program import command
from services.cli.show.terminal import printable
from services.cli.time_spec import parse_time_spec
from services.cli.tree.extras import require_governance
from services.runtime.clock import now_ms
from services.runtime.errors import UserError
from services.runtime.process import EXIT_INTERRUPTED

END_MS: Final = 2**47
"""A time later than that of any record, in milliseconds since the epoch."""


def find(args: argparse.Namespace) -> int:
    """Print the requests that the arguments describe. Return 0, or 1 if no request is found."""
    if args.most < 1:
        raise UserError(f"--most {args.most}: must be 1 or more")
    from_ms, to_ms = _times(args)
    wanted = Wanted(
        from_ms=from_ms, to_ms=to_ms, tenant=args.tenant, outcome=args.outcome, rule=args.rule,
        category=args.category, text=args.text, most=args.most,
    )  # fmt: skip
    if args.archive is not None and args.keys is None:
        found = find_in_archive(open_archive(args.archive), wanted)
    else:
        found = find_in_records(_records(args, from_ms, END_MS), wanted)
    for each in found:
        print(orjson.dumps(each._asdict()).decode() if args.json else _line(each))
    if not found:
        sys.stderr.write("railbus audit: no request is like that; --from says how far back was searched\n")
    return 0 if found else 1


def export(args: argparse.Namespace) -> int:
    from_ms, to_ms = _times(args)
    count = export_records(_records(args, from_ms, to_ms), args.file)
    sys.stderr.write(f"wrote {count} records to {args.file}\n")
    return 0


def verify(args: argparse.Namespace) -> int:
    """Print the changes that were made to an archive after it was written. Return 1 if there are any, else 0."""
    archive = open_archive(args.archive)
    keys = Verifier.load(args.public_key) if args.public_key else _own_key(archive)
    anchors = [anchor for path in args.anchors or () for anchor in _anchors(path)]
    outcome = verify_archive(archive, keys, anchors)
    if args.write_anchors is not None and not outcome.count:
        _write("--write-anchors", args.write_anchors, anchors_json(outcome.heads.values()))
    if args.json:
        told = asdict(outcome) | {"heads": [asdict(head) for head in outcome.heads.values()]}
        print(orjson.dumps(told).decode())
        return 1 if outcome.count else 0
    for each in outcome.tampering:
        # The names are from the archive, which may have been changed in order to control the terminal.
        print(printable(f"{each.topic}[{each.partition}] offset {each.offset}: {each.what}  ({each.file})"))
    if outcome.count > MAX_FINDINGS:
        print(f"and {outcome.count - MAX_FINDINGS} more")
    gaps = f"; the log itself had {outcome.gaps} gaps between offsets" if outcome.gaps else ""
    state = f"{outcome.count} changes" if outcome.count else "nothing was changed"
    print(f"{outcome.records} records in {outcome.files} files: {state}{gaps}")
    if not args.public_key:
        sys.stderr.write(
            "checked with the key that the archive itself names: whoever can write there can replace both; keep the"
            " public key elsewhere and give it with --public-key\n"
        )
    if not anchors:
        sys.stderr.write(
            "without --anchors nobody knows how far the archive went: a tail that was removed together with its"
            " checkpoints is not noticed\n"
        )
    return 1 if outcome.count else 0


def rejudge(args: argparse.Namespace) -> int:
    """Judge recorded prompts and answers with another policy, and print the differences.

    Return 1 if there are any.
    """
    require_governance(instead="")
    if args.html is not None:
        _write("--html", args.html, b"", mode="ab")  # fail now, not after hours of work; an older page is kept
    from_ms, to_ms = _times(args)
    options = ["--policy", str(args.policy), "--from-ms", str(from_ms), "--to-ms", str(to_ms)]
    if args.keys is not None:
        options += ["--keys", str(args.keys)]
    if args.archive is not None:
        options += ["--archive", args.archive]
    else:
        options += ["--kafka", bus_settings(args.kafka).bootstrap]
    answers = [] if args.labels is None else ["--labels", str(args.labels)]
    without = [part for rail in args.without_rail or () for part in ("--without-rail", rail)]
    as_json = args.json or args.html is not None
    told: list[Any] = []
    status = 0
    for service, own in (("safety", answers), ("rails", without)):
        program = command(f"services.{service}.rejudge", *options, *own)
        if not as_json:
            done = subprocess.run(program, check=False)  # noqa: S603 - our own program, no shell
        else:
            done = subprocess.run([*program, "--json"], stdout=subprocess.PIPE, check=False)  # noqa: S603 - likewise
        if done.returncode not in {0, 1}:
            return done.returncode
        told += [orjson.loads(done.stdout)] if as_json else []
        status |= done.returncode
    if args.html is not None:
        _write("--html", args.html, rejudge_page(told[0] | {"prompts": told[1]}).encode())
        sys.stderr.write(f"wrote {args.html}: open it in a browser\n")
    if args.json:
        print(orjson.dumps(told[0] | {"prompts": told[1]}).decode())
    return status


def forget(args: argparse.Namespace) -> int:
    """Destroy the encryption keys of a request or a tenant. Return 0, or 1 if there were no keys."""
    check_request_id(args.request)
    keys = KeyStore(args.keys)
    count = keys.forget(request_id=args.request, tenant=args.tenant)
    keys.close()
    whose = f"request {args.request}" if args.request is not None else f"tenant {args.tenant}"
    print(f"{count} keys of {whose} destroyed: its texts in archives cannot be read any more")
    return 0 if count else 1


def _records(args: argparse.Namespace, from_ms: int, to_ms: int) -> Iterable[StoredRecord]:
    if args.archive is not None:
        return archived_records(open_archive(args.archive, args.keys), from_ms, to_ms)
    found: list[StoredRecord] = []

    async def read() -> int:
        found.extend(await live_records(bus_settings(args.kafka), from_ms, TOPICS))
        return 0

    if run_coroutine(read()) == EXIT_INTERRUPTED:
        raise KeyboardInterrupt  # otherwise an export would be written without its records
    return [record for record in found if record.timestamp_ms < to_ms]


def _times(args: argparse.Namespace) -> tuple[int, int]:
    found = []
    for flag, text in (("--from", args.from_), ("--to", args.to_)):
        try:
            at = parse_time_spec(text, now_ms())
        except ValueError as error:
            raise UserError(f"{flag} {error}") from None
        found.append(at.time_ms if isinstance(at, AtTime) else 0 if at == "beginning" else END_MS)
    return found[0], found[1]


def _own_key(archive: Archive) -> Verifier:
    try:
        return Verifier([archive.public_pem])
    except ValueError:
        raise UserError(
            f"the archive {archive.store.location} names no public key any more: give its key with --public-key"
        ) from None


def _anchors(path: Path) -> list[ChainCheckpoint]:
    try:
        found = read_anchors(path.read_bytes())
    except OSError as error:
        raise UserError(f"--anchors {path}: {error.strerror}") from None
    if found is None:
        raise UserError(f"--anchors {path}: has a line that is no checkpoint")
    return found


def _write(flag: str, path: Path, content: bytes, mode: Literal["wb", "ab"] = "wb") -> None:
    try:
        with path.open(mode) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"{flag} {path}: {error.strerror}") from None


def _line(found: ArchivedRequest) -> str:
    when = datetime.fromtimestamp(found.first_ms / 1_000).astimezone().isoformat(timespec="milliseconds")
    recalls = ", ".join(found.rules)
    return printable(
        f"{when}  {found.request_id}  {found.tenant or '-':<12} {found.outcome or 'open':<10} {found.events:6} events"
        + (f"  recalls: {recalls}" if recalls else "")
    )
