import argparse
import sys
from pathlib import Path
from typing import Final

import orjson

from services.planner.bench import calibration_report
from services.planner.bench.calibration import Calibration, calibrate
from services.planner.bench.closed_loops import rows
from services.planner.bench.open_loops import BenchSlo
from services.planner.bench.report import as_json, comparison_lines, lines
from services.planner.bench.results import BenchResult, read_result, require_comparable_results
from services.planner.commands.promises import add_class_options, limits_of_class
from services.planner.serve.plan import Limits
from services.runtime.errors import UserError

DEFAULT_TTFT_MS: Final = 200.0
"""Default limit of the time to the first token of a good request, in milliseconds."""

DEFAULT_TOKEN_MS: Final = 50.0
"""Default limit of the mean time between tokens of a good request, in milliseconds."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("result", type=Path, help="file written by `railbus bench engine --out`")
    parser.add_argument("--against", type=Path, metavar="RESULT", help="compare with this earlier result")
    add_slo_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw into a .png or .svg file, or into a folder")


def add_slo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slo-ttft-ms",
        type=float,
        help="maximum time to the first token of a good request (default: that of --class, or 200)",
    )
    parser.add_argument(
        "--slo-token-ms",
        type=float,
        help="maximum mean time between tokens of a good request (default: that of --class, or 50)",
    )
    add_class_options(parser)


def run(args: argparse.Namespace) -> int:
    result, slo = read_result(args.result), bench_slo(args)
    if args.against is not None:
        return _compare(read_result(args.against), result, slo)
    calibration = _calibration(result)
    if args.plot is not None:
        from services.planner.bench.plots import draw_bench

        for path in draw_bench(result, calibration, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        report = as_json(result, slo)
        report["calibration"] = None if calibration is None else calibration_report.as_json(calibration)
        sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0
    text = [*lines(result, slo)]
    if calibration is not None:
        text += ["", "predicted against measured, closed loops:", *calibration_report.lines(calibration)]
    elif result.catalogue and any(run.measured.cells for run in result.runs):
        text += ["", "no prediction: no repetition of a closed loop has all answers, each in several pieces"]
    sys.stdout.write("\n".join(text) + "\n")
    return 0


def _compare(first: BenchResult, second: BenchResult, slo: BenchSlo) -> int:
    require_comparable_results(first, second)
    sys.stdout.write("\n".join(comparison_lines(first, second, slo)) + "\n")
    return 0


def _calibration(result: BenchResult) -> Calibration | None:
    return calibrate(result) if result.catalogue and rows(result) else None


def bench_slo(args: argparse.Namespace) -> BenchSlo:
    """Return the limits that the options of ``add_slo_options`` select.

    Raises:
        UserError: A limit is not above 0, or the policy has no such class, or the class has no limits.
    """
    limits = limits_of_class(args) or Limits()
    ttft_ms = limits.ttft_ms if args.slo_ttft_ms is None else args.slo_ttft_ms
    token_ms = limits.token_ms if args.slo_token_ms is None else args.slo_token_ms
    slo = BenchSlo(
        ttft_ms=DEFAULT_TTFT_MS if ttft_ms is None else ttft_ms,
        token_ms=DEFAULT_TOKEN_MS if token_ms is None else token_ms,
    )
    if not (slo.ttft_ms > 0 and slo.token_ms > 0):
        raise UserError("--slo-ttft-ms and --slo-token-ms must be above 0")
    return slo
