"""``railbus policy``: lint a policy, test it, or show its version."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.cli.tree.extras import need_policies

if TYPE_CHECKING:
    from services.policy import PolicyFault


MAX_NAMED: Final = 10
"""Maximum number of patterns that one line names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("lint", "test", "version"),
        help="check the files (lint), run the test cases (test), or print the version (version)",
    )
    parser.add_argument(
        "folder",
        nargs="*",
        type=Path,
        help="folders of policies (default: the policy that comes with Railbus)",
    )


def run(args: argparse.Namespace) -> int:
    """Return 0, or 1 if a policy is invalid or fails one of its tests."""
    need_policies()
    from services.policy import DEFAULT_POLICY  # not at the top: an installation without extras has no Rego

    action = {"lint": _lint, "test": _test, "version": _version}[args.action]
    return max(action(folder) for folder in args.folder or [DEFAULT_POLICY])


def _lint(folder: Path) -> int:
    from services.policy import BrokenPolicy, load
    from services.policy.lint import lint, unsearched_answers, unsearched_patterns
    from services.policy.source.files import read_files
    from services.policy.source.nemo_config import FOLDED_FLOW
    from services.policy.trial import try_policy

    try:
        try_policy(read_files(folder))
        faults = lint(folder)
    except BrokenPolicy as broken:
        faults = broken.faults
    _show(folder, faults)
    if not faults:
        policy = load(folder)
        longest = policy.automaton.max_chars
        print(f"{folder}: without fault; {len(policy.rules)} patterns, longest match {longest} characters")
        for rail, names in unsearched_patterns(policy).items():
            print(f"{folder}: no rail {rail!r}, so prompts are not searched for {_listed(names)}")
        if folded := unsearched_answers(policy):
            print(
                f"{folder}: no {FOLDED_FLOW!r} under rails.output.flows in nemo/config.yml, so answers are not searched"
                f" for the disguised words of {_listed(folded)}"
            )
    return 1 if faults else 0


def _test(folder: Path) -> int:
    from services.policy import BrokenPolicy, load
    from services.policy.golden import cases, run_case

    try:
        policy = load(folder)
        golden = cases(policy)
    except BrokenPolicy as broken:
        _show(folder, broken.faults)
        return 1
    faults = [fault for case in golden if (fault := run_case(policy, case)) is not None]
    _show(folder, faults)
    print(f"{folder}: {len(golden) - len(faults)} of {len(golden)} answers as expected")
    return 1 if faults else 0


def _version(folder: Path) -> int:
    from services.policy import BrokenPolicy, load

    try:
        policy = load(folder)
    except BrokenPolicy as broken:
        _show(folder, broken.faults)
        return 1
    print(f"{policy.version}  {policy.document.name}  {folder}")
    return 0


def _listed(names: "Sequence[str]") -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _show(folder: Path, faults: "Sequence[PolicyFault]") -> None:
    encoding = sys.stdout.encoding or "utf-8"
    for fault in faults:
        line = f"{folder / fault.path}:{fault.line}: {fault.message}"
        print(line.encode(encoding, "backslashreplace").decode(encoding))  # a test case may have a lone surrogate
