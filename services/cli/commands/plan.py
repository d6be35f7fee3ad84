"""``railbus plan``: compute latency budgets, the cost of a batch, or the number of GPUs, in a separate process."""

import argparse
import subprocess

from services.cli.program import command
from services.runtime.process import EXIT_INTERRUPTED, passing_sigterm_to

PLANS = ("latency", "batch", "serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=PLANS, help="kind of plan; for its options, see for example `railbus plan latency --help`"
    )
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Return 0, 2 for a usage error, or 130 after Ctrl-C or SIGTERM."""
    return run_planner(args.what, *args.flags)


def run_planner(*arguments: str) -> int:
    """Run the planner and return its exit code; 130 after SIGTERM, which also ends the planner and its engine."""
    process = subprocess.Popen(command("services.planner", *arguments))  # noqa: S603 - our own program, no shell
    with passing_sigterm_to(process) as received:
        try:
            process.wait()
        finally:
            process.terminate()  # has an effect only after Ctrl-C, which may have reached this process alone
    return EXIT_INTERRUPTED if received else process.returncode
