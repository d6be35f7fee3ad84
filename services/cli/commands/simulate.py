"""``railbus simulate``: run all services in virtual time with random faults, in a separate process."""

import argparse
import subprocess

from services.cli.program import command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed", type=int, default=0, help="first seed; a seed always gives the same run (default: %(default)s)"
    )
    parser.add_argument(
        "--runs", type=int, default=100, help="number of runs, each with the next seed (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        help="stop after this CPU time of all processes together, in seconds (default: 0, never)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="number of processes that run seeds in parallel (default: %(default)s)"
    )
    parser.add_argument("--faults", default="", help="only faults of these kinds, separated by commas (default: all)")


def run(args: argparse.Namespace) -> int:
    """Return 0 for success, 1 if a run violated a guarantee of Railbus, and 2 for a usage error."""
    options = ["--seed", args.seed, "--runs", args.runs, "--seconds", args.seconds, "--workers", args.workers]
    simulator = command("services.simulator", *map(str, options), "--faults", args.faults)
    return subprocess.run(simulator, check=False).returncode  # noqa: S603 - our own program, no shell
