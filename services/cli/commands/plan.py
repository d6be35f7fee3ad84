"""``railbus plan``: the planner, as a process of its own with this terminal."""

import argparse
import subprocess
import sys


def add(parser: argparse.ArgumentParser) -> None:
    """Everything behind the name of the plan is the planner's to understand."""
    parser.add_argument("what", choices=("latency",), help="which plan; `railbus plan latency --help` has its flags")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """The planner's exit code: 0, or 2 for the user's mistake."""
    return planner(args.what, *args.flags)


def planner(*arguments: str) -> int:
    """Runs ``python -m services.planner`` to its end."""
    command = [sys.executable, "-m", "services.planner", *arguments]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - our own program, no shell
