"""Read recorded answers, judge them again under a policy, and print the differences."""

import argparse
import gc
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson

from schemas.topics import STREAMS
from services.archive.traffic import Traffic, add_traffic_options, run_rejudge
from services.policy import BrokenPolicy, Policy, load
from services.runtime.errors import UserError
from services.safety.checks.classifiers import classifiers_check
from services.safety.checks.executor import Check
from services.safety.checks.nemo import nemo_check
from services.safety.decide.check_types import Tier
from services.safety.rejudge.compare import Comparison, Difference, Label, Scores, compare, score
from services.safety.rejudge.policy_replay import KINDS, PolicyReplay

MAX_SHOWN: Final = 200
"""Maximum number of differences in the table. The output of ``--json`` has all of them."""


async def rejudge(args: argparse.Namespace) -> int:
    """Judge recorded answers again under the policy in the folder ``args.policy``, and print the result.

    Return 1 if the recalls under this policy differ from the recorded recalls, else 0.

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
    gc.freeze()  # policy and checks are kept, so the collector need not walk their million objects
    gc.set_threshold(100_000)
    traffic = Traffic.of(args)
    replay = PolicyReplay(policy, checks, traffic.wants)
    async for partition, events in traffic.events([STREAMS], KINDS):
        await replay.take(partition, events)
    for check in checks.values():
        await check.close()
    found = compare(replay.runs)
    told = report(replay, policy, found, score(replay.runs, labels, replay.requests))
    if args.json:
        sys.stdout.write(orjson.dumps(told).decode() + "\n")
    else:
        sys.stdout.write("\n".join(_table(told, labelled=labels is not None)) + "\n")
    return 1 if found.differences else 0


async def build_checks(policy: Policy) -> dict[Tier, Check]:
    checks: dict[Tier, Check] = {1: await nemo_check(policy)}
    if policy.document.safety.classifiers:
        checks[2] = await classifiers_check(policy)
    return checks


def _labels(path: Path) -> list[Label]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"--labels {path}: {error.strerror}") from None
    found: list[Label] = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append(msgspec.json.decode(line, type=Label))
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise UserError(
                f"--labels {path}, line {number}: must be a JSON object such as"
                ' {"id": "01a2...", "span": [10, 25], "category": "email"}'
            ) from None
    return found


def report(replay: PolicyReplay, policy: Policy, found: Comparison, scores: Scores) -> dict[str, Any]:
    return {
        "policy": {"name": policy.document.name, "version": policy.version},
        "recorded_versions": replay.versions,
        "requests": len(replay.requests),
        "chunks": replay.chunks,
        "same": found.same,
        "unchecked": found.unchecked,
        "differences": [_difference(each) for each in found.differences],
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


def _table(told: dict[str, Any], *, labelled: bool) -> list[str]:
    policy, differences = told["policy"], told["differences"]
    lines = [
        f"{told['requests']} requests, {told['chunks']} chunks, under policy {policy['name']} {policy['version']}",
        f"recalls: {told['same']} the same, {len(differences)} different"
        + (f"; {told['unchecked']} were because a check had not answered" if told["unchecked"] else ""),
    ]
    for each in differences[:MAX_SHOWN]:
        sides = [_side(each[name]) for name in ("before", "after") if each[name] is not None]
        lines.append(f"  {each['request_id']} attempt {each['attempt']}  {each['change']:<10} {' -> '.join(sides)}")
    if len(differences) > MAX_SHOWN:
        lines.append(f"  and {len(differences) - MAX_SHOWN} more: --json has all")
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
    if unknown := told["labels_of_unknown_requests"]:
        lines.append(f"{unknown} labels are of requests that were not judged")
    return lines


def _side(recall: dict[str, Any]) -> str:
    return f"{recall['rule']} ({recall['category']}) {recall['start']}..{recall['end']} {recall['action']}"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m services.safety.rejudge",
        description="Judge recorded answers again under a policy; see `railbus audit rejudge`.",
    )
    add_traffic_options(found)
    found.add_argument(
        "--labels", type=Path, help="file of spans that should be recalled: JSON lines with id, span, category"
    )
    return found


def main() -> int:
    """Run the command. Return 0 if the policy's recalls equal the recorded ones, and 1 if they differ.

    Return 2 if the policy, the archive or a file of labels cannot be used.
    """
    return run_rejudge(rejudge(parser().parse_args()))
