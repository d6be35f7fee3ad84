"""Read recorded traffic, judge it again, print what is different."""

import argparse
import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import orjson

from schemas.base import AnyEvent
from schemas.ids import time_ms
from schemas.requests import LONGEST_TOTAL_MS, Request
from schemas.topics import REQUESTS, REQUESTS_BATCH, STREAMS, Topic
from services.archive.live import live_records
from services.archive.reader import Archive, received
from services.archive.sealing import KeyStore
from services.archive.store import Store
from services.bus import BusSettings
from services.policy import BrokenPolicy, Policy, load
from services.runtime.errors import UserError
from services.runtime.settings import load_settings
from services.runtime.task_groups import first_error
from services.safety.checks.classifiers import classifiers_check
from services.safety.checks.executor import Check
from services.safety.checks.nemo import nemo_check
from services.safety.decide.check_types import Tier
from services.safety.rejudge.compare import Comparison, Difference, Label, Scores, compare, read_labels, score
from services.safety.rejudge.judge import Judge

MAX_SHOWN: Final = 200
"""Most differences in the table; ``--json`` has all."""

_REQUEST_TOPICS: Final = (REQUESTS, REQUESTS_BATCH)


async def rejudge(args: argparse.Namespace) -> int:
    """Return 0 if nothing is different, 1 if something is.

    Raises:
        UserError: The policy, the archive or a file of labels cannot be used.
    """
    labels = None if args.labels is None else _labels(args.labels)
    try:
        policy = load(args.policy)
        checks = await build_checks(policy)
    except BrokenPolicy as broken:
        raise UserError(f"--policy {args.policy}: {broken}") from None
    gc.collect()
    gc.freeze()  # policy and checks stay: the collector must not walk a million objects again and again
    gc.set_threshold(100_000)
    from_ms, to_ms = args.from_ms, args.to_ms
    judge = Judge(policy, checks, lambda request_id: from_ms <= time_ms(request_id) < to_ms)
    async for record in _requests(args):
        judge.ask(record)
    async for partition, events in streams(args):
        await judge.take(partition, events)
    for check in checks.values():
        await check.close()
    found, scores = compare(judge.runs), score(judge.runs, labels, judge.requests)
    if args.json:
        sys.stdout.write(orjson.dumps(report(judge, policy, found, scores)).decode() + "\n")
    else:
        sys.stdout.write("\n".join(_table(judge, policy, found, scores, labelled=labels is not None)) + "\n")
    changed = any(before != now for before, now in judge.admissions.values())
    return 1 if found.differences or changed else 0


async def build_checks(policy: Policy) -> dict[Tier, Check]:
    """Build a policy's checks, as the service does."""
    checks: dict[Tier, Check] = {1: await nemo_check(policy)}
    if policy.document.safety.classifiers:
        checks[2] = await classifiers_check(policy)
    return checks


def _archive(args: argparse.Namespace) -> Archive | None:
    if args.archive is None:
        return None
    return Archive(Store(args.archive), None if args.keys is None else KeyStore(args.keys))


async def _requests(args: argparse.Namespace) -> AsyncIterator[Request]:
    async for _, events in _events(args, _REQUEST_TOPICS):
        for event in events:
            if isinstance(event, Request):
                yield event


async def streams(args: argparse.Namespace) -> AsyncIterator[tuple[int, list[AnyEvent]]]:
    """Yield the stream log's events, some at a time: partition by partition, in order of their offsets."""
    async for partition, events in _events(args, [STREAMS]):
        yield partition, events


async def _events(args: argparse.Namespace, topics: Sequence[Topic]) -> AsyncIterator[tuple[int, list[AnyEvent]]]:
    archive = _archive(args)
    if archive is None:
        records = await live_records(_bus(args), args.from_ms, topics)
        for partition, own in groupby(records, key=lambda record: record.partition):
            yield partition, [event.event for record in own if (event := received(record)) is not None]
        return
    for file in archive.files([topic.name for topic in topics], args.from_ms, _until(args)):
        for events in archive.events(file):
            yield file.partition, events


def _until(args: argparse.Namespace) -> int:
    """Return until when requests of the time may have events that matter."""
    return min(int(args.to_ms) + 2 * LONGEST_TOTAL_MS, 2**52)


def _bus(args: argparse.Namespace) -> BusSettings:
    return load_settings(BusSettings, {"RAILBUS_KAFKA_BOOTSTRAP": args.kafka} if args.kafka else {})


def _labels(path: Path) -> list[Label]:
    try:
        found = read_labels(path.read_bytes().splitlines())
    except OSError as error:
        raise UserError(f"--labels {path}: {error.strerror}") from None
    if isinstance(found, int):
        raise UserError(
            f"--labels {path}, line {found}: must be a JSON object such as"
            ' {"id": "01a2...", "span": [10, 25], "category": "email"}'
        )
    return found


def report(judge: Judge, policy: Policy, found: Comparison, scores: Scores) -> dict[str, Any]:
    """Return everything as JSON."""
    return {
        "policy": {"name": policy.document.name, "version": policy.version},
        "recorded_versions": judge.versions,
        "requests": len(judge.requests),
        "chunks": judge.chunks,
        "same": found.same,
        "unchecked": found.unchecked,
        "differences": [_difference(each) for each in found.differences],
        "admissions": {
            "same": sum(before == now for before, now in judge.admissions.values()),
            "denied_now": sorted(r for r, (before, now) in judge.admissions.items() if now and not before),
            "admitted_now": sorted(r for r, (before, now) in judge.admissions.items() if before and not now),
        },
        "rules": [each.row() for each in scores.rules],
        "labels": {
            category: {"labels": count, "found": scores.found[category], "recall": scores.found[category] / count}
            for category, count in sorted(scores.labels.items())
        },
        "labels_of_unknown_requests": scores.unknown,
    }


def _difference(each: Difference) -> dict[str, Any]:
    request_id, attempt, run = each.run
    sides = {
        name: None if recall is None else {
            "rule": recall.rule, "category": recall.category, "start": recall.start, "end": recall.end,
            "action": recall.action,
        }
        for name, recall in (("before", each.before), ("after", each.after))
    }  # fmt: skip
    return {"change": each.change, "request_id": request_id, "attempt": attempt, "run": run} | sides


def _table(judge: Judge, policy: Policy, found: Comparison, scores: Scores, *, labelled: bool) -> list[str]:
    told = report(judge, policy, found, scores)
    lines = [
        f"{told['requests']} requests, {told['chunks']} chunks, under policy {policy.document.name} {policy.version}",
        f"recalls: {found.same} the same, {len(found.differences)} different"
        + (f"; {found.unchecked} were because a check had not answered" if found.unchecked else ""),
    ]
    for each in told["differences"][:MAX_SHOWN]:
        sides = [_side(each[name]) for name in ("before", "after") if each[name] is not None]
        lines.append(f"  {each['request_id']} attempt {each['attempt']}  {each['change']:<10} {' -> '.join(sides)}")
    if len(found.differences) > MAX_SHOWN:
        lines.append(f"  and {len(found.differences) - MAX_SHOWN} more: --json has all")
    asked = told["admissions"]
    lines.append(
        f"admissions: {asked['same']} the same, {len(asked['denied_now'])} denied now,"
        f" {len(asked['admitted_now'])} admitted now"
    )
    lines += [f"  {request_id}  denied now" for request_id in asked["denied_now"][:MAX_SHOWN]]
    lines += [f"  {request_id}  admitted now" for request_id in asked["admitted_now"][:MAX_SHOWN]]
    lines.append("")
    lines.append(
        f"{'rule':<40} {'recalls':>7} {'precision':>9} {'exposed p50':>11} {'max':>6} {'removed':>8} {'wrongly':>8}"
    )
    for row in told["rules"]:
        precision = f"{row['precision']:9.1%}" if labelled and row["precision"] is not None else f"{'-':>9}"
        wrong = f"{row['wrong_chars']:8}" if labelled else f"{'-':>8}"
        lines.append(
            f"{row['rule'][:40]:<40} {row['recalls']:7} {precision} {row['exposed_chars_p50']:11.0f}"
            f" {row['exposed_chars_max']:6} {row['removed_chars']:8} {wrong}"
        )
    lines.append("exposed, removed and wrongly are characters")
    for category, row in told["labels"].items():
        lines.append(f"labels {category}: {row['found']} of {row['labels']} found, recall {row['recall']:.1%}")
    if scores.unknown:
        lines.append(f"{scores.unknown} labels are of requests that were not judged")
    return lines


def _side(recall: dict[str, Any]) -> str:
    return f"{recall['rule']} ({recall['category']}) {recall['start']}..{recall['end']} {recall['action']}"


def parser() -> argparse.ArgumentParser:
    """Return the parser; ``railbus audit rejudge`` calls this program."""
    found = argparse.ArgumentParser(
        prog="python -m services.safety.rejudge",
        description="judge recorded traffic again; see `railbus audit rejudge`",
    )
    found.add_argument("--policy", type=Path, required=True, help="folder of the policy to judge by")
    found.add_argument("--archive", help="the archive; without it the topics of --kafka are read")
    found.add_argument("--keys", type=Path, help="the archiver's key store, where texts are sealed")
    found.add_argument("--kafka", help="the broker, HOST:PORT")
    found.add_argument("--from-ms", type=int, default=0, help="requests from this time on, milliseconds since 1970")
    found.add_argument("--to-ms", type=int, default=2**47, help="requests before this time")
    found.add_argument("--labels", type=Path, help="JSON lines: id, span, category")
    found.add_argument("--json", action="store_true", help="print one JSON object")
    return found


def main() -> int:
    """Return 0, 1 if something is different, 2 for a user's mistake."""
    args = parser().parse_args()
    try:
        return asyncio.run(rejudge(args))
    except* UserError as mistakes:
        sys.stderr.write(f"railbus audit: {first_error(mistakes)}\n")
    return 2
