"""The report of ``railbus bench``: tables, drawings, the prediction beside what was measured."""

import argparse
import sys
from pathlib import Path

import orjson

from services.planner import calibration_show
from services.planner.bench_show import as_json, compared, lines
from services.planner.calibration import Calibration, calibrate
from services.planner.results import Result, read, refuse_unlike_results
from services.planner.summary import Slo
from services.runtime.errors import UserError


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.set_defaults(run=run)
    parser.add_argument("result", type=Path, help="what `railbus bench engine --out` wrote")
    parser.add_argument("--against", type=Path, metavar="RESULT", help="compare with this earlier one")
    parser.add_argument("--slo-ttft-ms", type=float, default=200.0, help="first token of a good request (200)")
    parser.add_argument("--slo-token-ms", type=float, default=50.0, help="between its tokens (50)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw it: .png, .svg, or a folder for all")


def run(args: argparse.Namespace) -> int:
    """Exit code 0."""
    result, slo = read(args.result), _slo(args)
    if args.against is not None:
        return _compare(read(args.against), result, slo)
    calibration = _calibration(result)
    if args.plot is not None:
        from services.planner.bench_plots import draw_bench

        for path in draw_bench(result, calibration, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        told = as_json(result, slo)
        told["calibration"] = None if calibration is None else calibration_show.as_json(calibration)
        sys.stdout.write(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() + "\n")
        return 0
    said = [*lines(result, slo)]
    if calibration is not None:
        said += ["", "predicted against measured, closed loops:", *calibration_show.lines(calibration)]
    sys.stdout.write("\n".join(said) + "\n")
    return 0


def _compare(first: Result, second: Result, slo: Slo) -> int:
    refuse_unlike_results(first, second)
    sys.stdout.write("\n".join(compared(first, second, slo)) + "\n")
    return 0


def _calibration(result: Result) -> Calibration | None:
    """None where there is nothing to calibrate with: no closed loops, or models that are not in the catalogue."""
    has_cells = any(run.measured.cells for run in result.runs)
    return calibrate(result) if has_cells and result.catalogue else None


def _slo(args: argparse.Namespace) -> Slo:
    if not (args.slo_ttft_ms > 0 and args.slo_token_ms > 0):
        raise UserError("--slo-ttft-ms and --slo-token-ms must be above 0")
    return Slo(ttft_ms=args.slo_ttft_ms, token_ms=args.slo_token_ms)
