"""``python -m services.planner``: the process behind ``railbus plan`` and the report of ``railbus bench``."""

import argparse
import sys
from collections.abc import Sequence

from services.planner.commands import batch, bench, bench_check, latency, serve
from services.runtime.errors import UserError
from services.runtime.process import EXIT_USER


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="railbus plan",
        description="Plan latency, batches and serving, and report on results of `railbus bench engine`.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = (
        "predict the latency of one kind of request: time of each part, gain by speculation, deadline, delay by rails"
    )
    latency.add(commands.add_parser("latency", help=about, description=about))
    about = "plan a batch: time, cost and quality of each way to answer many prompts"
    batch.add(commands.add_parser("batch", help=about, description=about))
    about = "plan serving: how many GPUs of each kind a given number of users needs, within limits of latency"
    serve.add(commands.add_parser("serve", help=about, description=about))
    about = "report on a result of `railbus bench engine`: tables, drawings, predicted and measured times"
    bench.add(commands.add_parser("bench", help=about, description=about))
    about = "check the options of `railbus bench engine` that the report needs"
    bench_check.add(commands.add_parser("bench-check", help=about, description=about))
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except UserError as error:
        sys.stderr.write(f"railbus {'bench' if args.command.startswith('bench') else 'plan'}: {error}\n")
        return EXIT_USER


if __name__ == "__main__":
    sys.exit(main())
