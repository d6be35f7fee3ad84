"""``python -m services.planner``: what ``railbus plan`` and the report of ``railbus bench`` run."""

import argparse
import sys
from collections.abc import Sequence

from services.planner.commands import bench, latency
from services.runtime.errors import UserError
from services.runtime.process import EXIT_USER


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for the user's mistake."""
    parser = argparse.ArgumentParser(prog="railbus plan", description="What latency costs, and what buys it.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "the budget of one kind of request: floors, speculation, deadline, governance"
    latency.add(commands.add_parser("latency", help=about, description=about))
    about = "a result of `railbus bench engine`, read: tables, drawings, predicted against measured"
    bench.add(commands.add_parser("bench", help=about, description=about))
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except UserError as error:
        sys.stderr.write(f"railbus {'bench' if args.command == 'bench' else 'plan'}: {error}\n")
        return EXIT_USER


if __name__ == "__main__":
    sys.exit(main())
