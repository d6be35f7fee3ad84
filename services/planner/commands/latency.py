"""``railbus plan latency``."""

import argparse
import sys
from pathlib import Path
from typing import get_args

import orjson

from services.physics.roofline import Precision
from services.planner import calibration_show
from services.planner.calibration import calibrate
from services.planner.latency import plan
from services.planner.names import find_gpu, find_model
from services.planner.question import Around, Question
from services.planner.results import read
from services.planner.show import as_json, lines
from services.runtime.errors import UserError


def add(parser: argparse.ArgumentParser) -> None:
    """Its flags."""
    parser.set_defaults(run=run)
    parser.add_argument("--gpu", default="h100", help="accelerator, from the catalogue (h100)")
    parser.add_argument("--target", default="gemma-3-27b", help="model that answers, or its config.json (gemma-3-27b)")
    parser.add_argument(
        "--draft", default="gemma-3-4b", help="model that drafts, its config.json, or none (gemma-3-4b)"
    )
    parser.add_argument("--precision", default="fp8", choices=get_args(Precision), help="of the linear layers (fp8)")
    parser.add_argument("--alpha", type=float, default=0.8, help="chance that a drafted token is accepted (0.8)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of prompt (512)")
    parser.add_argument("--cached", type=int, default=0, help="of these, cached (0)")
    parser.add_argument("--output", type=int, default=50, help="tokens of answer (50)")
    parser.add_argument("--batch", type=int, default=1, help="sequences that decode together (1)")
    parser.add_argument("--utilisation", type=float, default=0.0, help="how busy the engine is, 0 to below 1 (0)")
    parser.add_argument("--ttft-ms", type=float, default=200.0, help="deadline for the first token (200)")
    parser.add_argument("--launch-ms", type=float, default=0.0, help="of a draft step, beyond its bytes (0)")
    usual = Around()
    for name in ("network", "pre", "post", "response", "rails"):
        value = getattr(usual, name)
        parser.add_argument(f"--{name}-ms", type=float, default=value, help=f"part of the budget ({value:g})")
    parser.add_argument(
        "--calibrate", type=Path, metavar="RESULT", help="fit the model to a result of `railbus bench engine` instead"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="--calibrate: leave out what others took of the processor; for an engine that computes on one thread",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw it: .png, .svg, or a folder for all")


def run(args: argparse.Namespace) -> int:
    """Exit code 0."""
    if args.calibrate is not None:
        return _calibrate(args)
    question = _question(args)
    answer = plan(question)
    if args.plot is not None:
        from services.planner.plots import draw_plan

        for path in draw_plan(question, answer, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        sys.stdout.write(orjson.dumps(as_json(question, answer), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(question, answer)) + "\n")
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    result = read(args.calibrate)
    calibration = calibrate(result, processor=args.processor_time)
    if args.plot is not None:
        from services.planner.bench_plots import draw_bench

        for path in draw_bench(result, calibration, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        told = orjson.dumps(calibration_show.as_json(calibration), option=orjson.OPT_INDENT_2)
        sys.stdout.write(told.decode() + "\n")
    else:
        sys.stdout.write("\n".join(calibration_show.lines(calibration)) + "\n")
    return 0


def _question(args: argparse.Namespace) -> Question:
    try:
        return Question(
            gpu=find_gpu(args.gpu),
            target=find_model(args.target),
            draft=None if args.draft == "none" else find_model(args.draft),
            precision=args.precision,
            alpha=args.alpha,
            prompt=args.prompt,
            cached=args.cached,
            output=args.output,
            batch=args.batch,
            utilisation=args.utilisation,
            ttft_ms=args.ttft_ms,
            launch_ms=args.launch_ms,
            around=Around(
                network=args.network_ms, pre=args.pre_ms, post=args.post_ms, response=args.response_ms,
                rails=args.rails_ms,
            ),
        )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from None
