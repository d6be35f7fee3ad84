"""``railbus policy``: lint a policy, test it against its golden answers, show its version."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from services.policy import DEFAULT_POLICY, BrokenPolicy, Fault, load
from services.policy.golden import cases
from services.policy.golden import run as run_case
from services.policy.lint import lint


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.add_argument("action", choices=("lint", "test", "version"), help="what to do")
    parser.add_argument(
        "folder",
        nargs="*",
        type=Path,
        default=[DEFAULT_POLICY],
        help="folders of policies (policies/default)",
    )


def run(args: argparse.Namespace) -> int:
    """Exit code 0; 1 when a policy is at fault."""
    action = {"lint": _lint, "test": _test, "version": _version}[args.action]
    return max(action(folder) for folder in args.folder)


def _lint(folder: Path) -> int:
    faults = lint(folder)
    _show(folder, faults)
    if not faults:
        policy = load(folder)
        longest = policy.machine.max_chars
        print(f"{folder}: without fault; {len(policy.rules)} patterns, longest match {longest} characters")
    return 1 if faults else 0


def _test(folder: Path) -> int:
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
    try:
        policy = load(folder)
    except BrokenPolicy as broken:
        _show(folder, broken.faults)
        return 1
    print(f"{policy.version}  {policy.document.name}  {folder}")
    return 0


def _show(folder: Path, faults: Sequence[Fault]) -> None:
    for fault in faults:
        print(f"{folder / fault.path}:{fault.line}: {fault.message}")
