"""Check those options of ``railbus bench engine`` that only the report needs, before minutes of measuring."""

import argparse
from typing import Final

from services.planner.bench.calibration import unfitted_roofline
from services.planner.commands.bench import add_slo_options, bench_slo

CATALOGUE: Final = ("gpu", "target", "draft", "precision", "budget")


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    add_slo_options(parser)
    for name in CATALOGUE:
        parser.add_argument(f"--{name}")


def run(args: argparse.Namespace) -> int:
    bench_slo(args)
    given = {name: value for name in CATALOGUE if (value := getattr(args, name)) is not None}
    if given:  # else the report has no predictions
        unfitted_roofline(given)
    return 0
