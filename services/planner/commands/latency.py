import argparse
import sys
from pathlib import Path
from typing import Final, get_args

import orjson

from services.physics.catalogue.precisions import Precision
from services.physics.efficiency import Engine
from services.physics.roofline import KvPrecision
from services.planner.bench import calibration_report
from services.planner.bench.calibration import calibrate
from services.planner.bench.results import read_result
from services.planner.catalogue import find_gpu, find_model
from services.planner.commands.promises import add_class_options, limits_of_class
from services.planner.latency.plan import plan_latency
from services.planner.latency.plan_input import PlanInput, SurroundingLatency
from services.planner.latency.report import as_json, lines
from services.runtime.errors import UserError

DEFAULT_TTFT_MS: Final = 200.0
"""Default deadline of a request for the first token, in milliseconds."""
_SURROUNDINGS: Final = {
    "network": "round trip between client and edge",
    "pre": "time of edge, Kafka and tokenizer before the engine",
    "post": "time for detokenizing and bookkeeping of a chunk",
    "response": "time of Kafka and edge after the engine",
    "rails": "time of the input rails, which run during the queue and the prefill",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    parser.add_argument("--gpu", default="h100", help="name of the GPU in the catalogue (default: %(default)s)")
    parser.add_argument(
        "--target",
        default="gemma-3-27b",
        help="target model in the catalogue, or its config.json (default: %(default)s)",
    )
    parser.add_argument(
        "--draft",
        default="gemma-3-4b",
        help="draft model in the catalogue, its config.json, or none (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        default="fp8",
        choices=get_args(Precision),
        help="precision of the linear layers (default: %(default)s)",
    )
    parser.add_argument(
        "--kv", default="bf16", choices=get_args(KvPrecision), help="precision of the KV cache (default: %(default)s)"
    )
    parser.add_argument(
        "--engine",
        default="vllm",
        choices=get_args(Engine),
        help="engine whose measured efficiency is assumed (default: %(default)s)",
    )
    parser.add_argument(
        "--alpha", type=float, default=0.8, help="probability that a drafted token is accepted (default: %(default)s)"
    )
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument(
        "--cached", type=int, default=0, help="prompt tokens that are in the prefix cache (default: %(default)s)"
    )
    parser.add_argument("--output", type=int, default=50, help="tokens of the answer (default: %(default)s)")
    parser.add_argument(
        "--batch", type=int, default=1, help="number of sequences that decode together (default: %(default)s)"
    )
    parser.add_argument(
        "--utilisation",
        type=float,
        default=0.0,
        help="share of the time in which other requests prefill, 0 to below 1 (default: 0)",
    )
    parser.add_argument(
        "--ttft-ms",
        type=float,
        help="deadline of the first token, counted from receipt (default: that of --class, or 200)",
    )
    add_class_options(parser)
    parser.add_argument(
        "--launch-ms",
        type=float,
        default=0.0,
        help="extra time of each draft step, beyond the draft model's own (default: 0)",
    )
    defaults = SurroundingLatency()
    for name, meaning in _SURROUNDINGS.items():
        value = getattr(defaults, name)
        parser.add_argument(f"--{name}-ms", type=float, default=value, help=f"{meaning} (default: {value:g})")
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="RESULT",
        help="instead, fit the formulas to a result of `railbus bench engine`",
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="with --calibrate: use CPU time instead of wall time; only for an engine that computes on one thread",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw into a .png or .svg file, or into a folder")


def run(args: argparse.Namespace) -> int:
    if args.calibrate is not None:
        return _calibrate(args)
    inputs = _plan_input(args)
    plan = plan_latency(inputs)
    if args.plot is not None:
        from services.planner.latency.plots import draw_plan

        for path in draw_plan(inputs, plan, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        sys.stdout.write(orjson.dumps(as_json(inputs, plan), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(inputs, plan)) + "\n")
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    result = read_result(args.calibrate)
    calibration = calibrate(result, processor=args.processor_time)
    if args.plot is not None:
        from services.planner.bench.plots import draw_bench

        for path in draw_bench(result, calibration, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        text = orjson.dumps(calibration_report.as_json(calibration), option=orjson.OPT_INDENT_2)
        sys.stdout.write(text.decode() + "\n")
    else:
        sys.stdout.write("\n".join(calibration_report.lines(calibration)) + "\n")
    return 0


def _ttft_ms(args: argparse.Namespace) -> float:
    limits = limits_of_class(args)
    promised = DEFAULT_TTFT_MS if limits is None or limits.ttft_ms is None else limits.ttft_ms
    return promised if args.ttft_ms is None else float(args.ttft_ms)


def _plan_input(args: argparse.Namespace) -> PlanInput:
    try:
        return PlanInput(
            gpu=find_gpu(args.gpu),
            target=find_model(args.target),
            draft=None if args.draft == "none" else find_model(args.draft),
            precision=args.precision,
            kv=args.kv,
            engine=args.engine,
            alpha=args.alpha,
            prompt=args.prompt,
            cached=args.cached,
            output=args.output,
            batch=args.batch,
            utilisation=args.utilisation,
            ttft_ms=_ttft_ms(args),
            launch_ms=args.launch_ms,
            around=SurroundingLatency(
                network=args.network_ms, pre=args.pre_ms, post=args.post_ms, response=args.response_ms,
                rails=args.rails_ms,
            ),
        )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from None
