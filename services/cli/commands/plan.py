"""``railbus plan``: compute latency budgets, the cost of a batch, or the number of GPUs, in a separate process."""

import argparse
import subprocess

from services.cli.program import command

PLANS = ("latency", "batch", "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=PLANS, help="kind of plan; for its options, see for example `railbus plan latency --help`"
    )
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Return 0, or 2 for a usage error."""
    return run_planner(args.what, *args.flags)


def run_planner(*arguments: str) -> int:
    return subprocess.run(command("services.planner", *arguments), check=False).returncode  # noqa: S603 - our own program, no shell
