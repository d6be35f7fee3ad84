import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from services.physics.catalogue.precisions import PRECISIONS
from services.physics.checks import positive
from services.physics.parallel import Layout
from services.planner.batch.prices import read_prices
from services.planner.bench.results import read_result
from services.planner.catalogue import find_gpu, find_model
from services.planner.commands.promises import add_class_options, limits_of_class
from services.planner.serve.growth import growth
from services.planner.serve.measured import measured_kind
from services.planner.serve.plan import READING, Demand, EngineKind, ServePlan, engine_kind, grown, plan_serve
from services.planner.serve.report import GrowthRow, as_json, cheapest, lines
from services.runtime.errors import UserError

MANY: Final = 1_000_000
"""A number of requests per second that is too large for one engine. With it, the latencies of a full engine are
computed."""

STREAMS: Final = (1_000, 10_000, 100_000, 1_000_000)


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    demand = parser.add_argument_group("the demand")
    demand.add_argument("--users", type=int, default=1_000, help="number of users (default: %(default)s)")
    demand.add_argument(
        "--every",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds between two requests of a user, at the peak (default: 60)",
    )
    demand.add_argument("--prompt", type=int, default=512, help="tokens of a prompt (default: %(default)s)")
    demand.add_argument(
        "--cached", type=int, default=0, help="prompt tokens that are in the prefix cache (default: %(default)s)"
    )
    demand.add_argument("--output", type=int, default=200, help="tokens of an answer (default: %(default)s)")
    promise = parser.add_argument_group("the promise")
    add_class_options(promise)
    for name, what in (
        ("ttft", "maximum p99 of the time to the first token"),
        ("token", "maximum mean time between tokens"),
        ("total", "maximum p99 of the time of the whole answer"),
    ):
        promise.add_argument(f"--{name}-ms", type=float, metavar="MS", help=f"{what}, instead of the limit of --class")
    engines = parser.add_argument_group("the engines")
    engines.add_argument(
        "--model", default="gemma-3-27b", help="model in the catalogue, or its config.json (default: %(default)s)"
    )
    engines.add_argument(
        "--gpu", default="a100-80,h100,h200,b200", help="kinds of GPU to compare (default: %(default)s)"
    )
    engines.add_argument(
        "--gpus",
        default="1,2,4,8",
        help="numbers of GPUs per engine (tensor parallel) to compare (default: %(default)s)",
    )
    engines.add_argument(
        "--precision", default="fp8", choices=PRECISIONS, help="precision of the weights (default: %(default)s)"
    )
    engines.add_argument(
        "--calibrate",
        type=Path,
        metavar="RESULT",
        help="plan only with the engine of this result of `railbus bench engine`",
    )
    parser.add_argument(
        "--grow", action="store_true", help="also show what 1,000 to 1,000,000 answers at once would need"
    )
    parser.add_argument("--prices", type=Path, metavar="FILE", help="price file, as for `railbus plan batch`")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    prices, demand = read_prices(args.prices), _demand(args)
    plans: list[ServePlan] = []
    refused: list[str] = []
    for make in _kinds(args, demand, refused):
        try:
            plans.append(plan_serve(make, demand))
        except ValueError as error:
            refused.append(str(error))
    if not plans:
        raise UserError(f"no engine keeps the promise: {'; '.join(refused)}")
    chosen = cheapest(plans, prices) if args.grow else None
    table = [] if chosen is None else _grown(demand, chosen)
    if args.json:
        text = orjson.dumps(as_json(demand, prices, plans, refused, table), option=orjson.OPT_INDENT_2)
        sys.stdout.write(text.decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(demand, prices, plans, refused, table)) + "\n")
    return 0


def _grown(demand: Demand, chosen: ServePlan) -> list[GrowthRow]:
    full = plan_serve(chosen.kind, replace(demand, users=MANY, every_s=1.0)).full
    rows = []
    for streams in STREAMS:
        try:
            plan = plan_serve(chosen.kind, grown(demand, streams, full))
        except ValueError as error:
            raise UserError(f"--grow: {error}") from None
        # An answer of one token is one chunk, and its stream is open until this chunk comes.
        rows.append(GrowthRow(plan, growth(streams, plan.seen.token_ms or full.ttft_ms(0.5))))
    return rows


def _demand(args: argparse.Namespace) -> Demand:
    try:
        limits = limits_of_class(args) or READING
        for name in ("ttft_ms", "token_ms", "total_ms"):
            value = getattr(args, name)
            if value is not None:
                limits = replace(limits, **{name: positive(f"--{name.replace('_', '-')}", value)})
        return Demand(
            users=args.users, every_s=args.every, prompt=args.prompt, cached=args.cached, output=args.output,
            limits=limits,
        )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from None


def _kinds(args: argparse.Namespace, demand: Demand, refused: list[str]) -> Iterator[EngineKind]:
    if args.calibrate is not None:
        try:
            yield measured_kind(read_result(args.calibrate), demand)
        except ValueError as error:
            refused.append(str(error))
        return
    model = find_model(args.model)
    try:
        counts = sorted({int(part) for part in args.gpus.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1 or counts[-1] > 64:
        raise UserError(f"--gpus {args.gpus!r}: give whole numbers within 1 and 64, such as 1,2,4,8")
    for name in args.gpu.split(","):
        gpu = find_gpu(name.strip())
        for count in counts:
            try:
                yield engine_kind(model, gpu, args.precision, Layout(tensor=count), demand)
            except ValueError as error:
                refused.append(str(error))
