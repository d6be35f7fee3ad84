"""Read recorded prompts, judge them again under a policy, and print which verdicts differ from the recorded ones.

The rails of a prompt run one after another. Each has a long deadline, so that the outcome does not
depend on how fast the rails run.
"""

import argparse
import asyncio
import sys
import time
from typing import Any, Final

import orjson

from schemas.requests import Request
from schemas.stream import Verdict
from schemas.topics import REQUESTS, REQUESTS_BATCH, STREAMS
from services.archive.traffic import Traffic, add_traffic_options, run_rejudge
from services.policy import BrokenPolicy, Policy, load
from services.rails.evaluator import JAILBREAK, RailsEvaluator, build_evaluator
from services.rails.jailbreak import JailbreakClassifier
from services.rails.rejudge.compare import JudgedPrompt, VerdictComparison, VerdictDifference
from services.runtime.errors import UserError
from services.runtime.settings import parse_count

MAX_SHOWN: Final = 200
"""Maximum number of differences in the table; ``--json`` has all."""

MAX_CLASSIFIERS: Final = 64
"""Maximum number of processes of the jailbreak classifier, as in the rails service."""

AT_ONCE: Final = 16
"""Maximum number of requests judged concurrently. While one request waits for the classifier, others are read."""


async def rejudge(args: argparse.Namespace) -> int:
    """Judge the recorded prompts again and print the result. Return 0 if no verdict is different, else 1.

    Raises:
        UserError: The policy or the archive cannot be used, or ``--without-rail`` names a rail that the policy does not
            have.
    """
    classifier = JailbreakClassifier(args.classifiers)
    try:
        policy = load(args.policy)
        left_out = await _left_out(args.without_rail, policy, classifier)
        evaluator = await build_evaluator(policy, classifier, None, None)
    except BrokenPolicy as broken:
        raise UserError(f"--policy {args.policy}: {broken}") from None
    found, begun = VerdictComparison(), time.monotonic()
    try:
        await _judge(Traffic.of(args), evaluator, found, frozenset(left_out))
    finally:
        await evaluator.close()
        classifier.close()
    told = report(policy, found, left_out) | {"seconds": round(time.monotonic() - begun, 2)}
    if args.json:
        sys.stdout.write(orjson.dumps(told).decode() + "\n")
    else:
        sys.stdout.write("\n".join(_table(told)) + "\n")
    return 1 if found.differences else 0


async def _judge(
    traffic: Traffic, evaluator: RailsEvaluator, found: VerdictComparison, left_out: frozenset[str]
) -> None:
    recorded: dict[str, JudgedPrompt] = {}
    async for _, events in traffic.events([STREAMS], {Verdict.__name__}):
        for verdict in events:
            if isinstance(verdict, Verdict) and traffic.wants(verdict.request_id):
                recorded.setdefault(verdict.request_id, JudgedPrompt.of(verdict))  # the first one counts

    async def judge(request: Request, before: JudgedPrompt) -> tuple[str, JudgedPrompt, JudgedPrompt]:
        content = await evaluator.judge_again(request, left_out)
        return request.request_id, before, JudgedPrompt.of(content)

    async for _, events in traffic.events([REQUESTS, REQUESTS_BATCH], {Request.__name__}):
        asked = [each for each in events if isinstance(each, Request) and each.attempt == 1]
        known = [(each, recorded.pop(each.request_id)) for each in asked if each.request_id in recorded]
        for begin in range(0, len(known), AT_ONCE):
            for judged in await asyncio.gather(*(judge(*each) for each in known[begin : begin + AT_ONCE])):
                found.add(*judged, left_out)
    found.differences.sort(key=lambda each: each.request_id)


async def _left_out(named: list[str], policy: Policy, classifier: JailbreakClassifier) -> dict[str, str]:
    rails = [rail.name for rail in policy.document.rails.rail]
    for name in named:
        if name not in rails:
            raise UserError(f"--without-rail {name}: the rails of this policy are {', '.join(rails)}")
    found = dict.fromkeys(named, "--without-rail")
    if JAILBREAK in rails and JAILBREAK not in found and (reason := await classifier.prepare()) is not None:
        found[JAILBREAK] = reason
    return found


def report(policy: Policy, found: VerdictComparison, left_out: dict[str, str]) -> dict[str, Any]:
    return {
        "policy": {"name": policy.document.name, "version": policy.version},
        "requests": found.same + found.unanswered + found.left_out + len(found.differences),
        "same": found.same,
        "unanswered": found.unanswered,
        "left_out": {"rails": left_out, "verdicts": found.left_out},
        "differences": [_difference(each) for each in found.differences],
        "blocked": dict(found.blocked.most_common()),
    }


def _difference(each: VerdictDifference) -> dict[str, Any]:
    return {
        "request_id": each.request_id, "change": each.change, "before": each.before.row(), "after": each.after.row(),
    }  # fmt: skip


def _table(told: dict[str, Any]) -> list[str]:
    policy, left_out = told["policy"], told["left_out"]
    lines = [
        f"{told['requests']} prompts, under policy {policy['name']} {policy['version']}",
        f"verdicts: {told['same']} the same, {len(told['differences'])} different"
        + (f"; {told['unanswered']} were because a rail had not answered" if told["unanswered"] else "")
        + (f"; {left_out['verdicts']} were of rails that were not asked" if left_out["verdicts"] else ""),
    ]
    lines += [f"rail {rail} was not asked: {why}" for rail, why in left_out["rails"].items()]
    for each in told["differences"][:MAX_SHOWN]:
        lines.append(
            f"  {each['request_id']}  {each['change'] + ' now':<26} {_side(each['before'])} -> {_side(each['after'])}"
        )
    if len(told["differences"]) > MAX_SHOWN:
        lines.append(f"  and {len(told['differences']) - MAX_SHOWN} more: --json has all")
    lines += [f"rail {rail} refuses {count} prompts" for rail, count in told["blocked"].items()]
    return lines


def _side(ruling: dict[str, Any]) -> str:
    details = "; ".join(f"{rail}: {detail}" for rail, detail in ruling["rails"].items())
    return f"{ruling['decision']} ({details})" if details else str(ruling["decision"])


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m services.rails.rejudge",
        description="Judge recorded prompts again under a policy; see `railbus audit rejudge`.",
    )
    add_traffic_options(found)
    found.add_argument("--without-rail", action="append", default=[], help="leave out this rail; repeatable")
    found.add_argument(
        "--classifiers",
        type=_processes,
        default=1,
        help=f"number of processes of the jailbreak classifier, 1 to {MAX_CLASSIFIERS} (default: %(default)s)",
    )
    return found


def _processes(text: str) -> int:
    count = parse_count(text, MAX_CLASSIFIERS)
    if count is None:
        raise argparse.ArgumentTypeError(f"{text[:64]!r}: must be a whole number from 1 to {MAX_CLASSIFIERS}")
    return count


def main() -> int:
    """Run the program. Return 0 if no verdict differs, 1 if a verdict differs, and 2 for a mistake of the user."""
    return run_rejudge(rejudge(parser().parse_args()))
