import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson

from services.physics.batches import BatchWork
from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import PRECISIONS
from services.planner.batch.choose import answers, good_enough
from services.planner.batch.hardware import Deployment, sample_factor
from services.planner.batch.plan import plan_batch
from services.planner.batch.prices import PriceFile, default_text, read_prices
from services.planner.batch.report import as_json, lines
from services.planner.batch.sample import SampledEngine, measured_ways, sampled_engine
from services.planner.batch.sample_file import divided, read_prompts
from services.planner.batch.sample_runner import run_loops
from services.planner.batch.ways import BatchJob, Way
from services.planner.catalogue import find_gpu, find_model
from services.planner.plotting import check_plot
from services.runtime.errors import UserError

USUAL_SMALLER: Final = ("gemma-2-9b", "gemma-2-2b")
USUAL_DRAFT: Final = "gemma-3-1b"

MAX_SAMPLE_OUTPUT: Final = 4_096
"""Maximum number of tokens of a sampled answer, as the benchmark has it (``services/generator/bench/workload.py``)."""

HOURS: Final = {"m": 1 / 60, "min": 1 / 60, "h": 1.0, "d": 24.0}


def add(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)
    job = parser.add_argument_group("the job")
    job.add_argument("--requests", type=int, default=200_000, help="number of requests (default: %(default)s)")
    job.add_argument(
        "--shared",
        type=int,
        default=2_400,
        help="tokens that all prompts have in common at their beginning (default: %(default)s)",
    )
    job.add_argument(
        "--own",
        type=int,
        default=600,
        help="further tokens of each prompt, after the common ones (default: %(default)s)",
    )
    job.add_argument("--output", type=int, default=300, help="tokens of each answer (default: %(default)s)")
    job.add_argument(
        "--model", default="gemma-3-12b", help="model in the catalogue, or its config.json (default: %(default)s)"
    )
    ways = parser.add_argument_group("the ways")
    ways.add_argument(
        "--gpu", default="rtx-4080", help="your own GPU: its name in the catalogue, or none (default: %(default)s)"
    )
    ways.add_argument("--gpus", default="1,2,4,8", help="numbers of GPUs to consider (default: %(default)s)")
    ways.add_argument(
        "--smaller",
        help="smaller models to consider, or none (default: gemma-2-9b and gemma-2-2b, if smaller than --model)",
    )
    ways.add_argument("--draft", help="draft model, or none (default: gemma-3-1b, if smaller than --model)")
    ways.add_argument(
        "--alpha", type=float, default=0.7, help="probability that a drafted token is accepted (default: %(default)s)"
    )
    ways.add_argument(
        "--refine",
        type=float,
        default=0.1,
        help="share of the prompts that a cascade passes to the larger model (default: %(default)s)",
    )
    ways.add_argument(
        "--best",
        type=float,
        default=0.01,
        help="share of the prompts that count as the best, which a cascade has to find (default: %(default)s)",
    )
    ways.add_argument(
        "--rho",
        type=float,
        default=0.8,
        help="rank correlation between the scores of a cascade's first and last model (default: %(default)s)",
    )
    sample = parser.add_argument_group("a sample, run before the plan is made")
    sample.add_argument(
        "--sample",
        type=Path,
        metavar="FILE",
        help="file of prompts to run: OpenAI's batch JSONL, JSON objects with a prompt, or one prompt per line",
    )
    sample.add_argument(
        "--engine",
        default="llama",
        help="engine of the sample: simulated, llama, openai (any server, or an edge), vllm (default: %(default)s)",
    )
    sample.add_argument(
        "--sample-size",
        type=int,
        default=200,
        help="number of prompts to run, spread over the file (default: %(default)s)",
    )
    sample.add_argument(
        "--at-once", type=int, default=4, help="maximum number of requests at once (default: %(default)s)"
    )
    sample.add_argument(
        "--limit-s", type=float, default=600.0, help="seconds after which no further prompt is sent (default: 600)"
    )
    sample.add_argument(
        "--request-s", type=float, default=120.0, help="timeout of a request, in seconds (default: 120)"
    )
    sample.add_argument(
        "--sampled-gpu",
        help="GPU on which the sampled engine runs --model; the sample then corrects predictions for this GPU",
    )
    sample.add_argument(
        "--sampled-precision",
        default="fp8",
        choices=PRECISIONS,
        help="precision of the sampled engine's weights (default: %(default)s)",
    )
    sample.add_argument(
        "--engine-per-hour",
        type=float,
        default=0.0,
        help="cost of the sampled engine per hour, in US dollars (default: 0)",
    )
    asked = parser.add_argument_group("the questions")
    asked.add_argument(
        "--within", metavar="TIME", help="also choose the cheapest way within this time, such as 5h, 90m or 2d"
    )
    asked.add_argument(
        "--budget", type=float, metavar="MONEY", help="also choose the best way within this cost, in US dollars"
    )
    asked.add_argument(
        "--quality-loss",
        type=float,
        default=5.0,
        help="maximum loss of quality score, in points, against --model (default: 5)",
    )
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="TOML file with your prices, rate limits and scores (default: the built-in file)",
    )
    parser.add_argument(
        "--show-prices", action="store_true", help="print the default price file, to be edited, and exit"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw into a .png or .svg file, or into a folder")


def run(args: argparse.Namespace) -> int:
    if args.show_prices:
        sys.stdout.write(default_text())
        return 0
    prices, job = read_prices(args.prices), _job(args)
    within_h = None if args.within is None else _hours(args.within)
    if args.budget is not None and not args.budget > 0:
        raise UserError(f"--budget {args.budget:g}: give an amount above 0")
    if job.gpu is not None:
        prices.owned_gpu(job.gpu.name)  # raises if there is no entry, before a sample that takes minutes
    if args.plot is not None:
        check_plot(args.plot)
    measured: list[Way] = []
    if args.sample is not None:
        job, measured = _sampled(args, job, prices)
    plan = plan_batch(job, prices)
    plan = replace(plan, ways=(*measured, *plan.ways))
    if not plan.ways:
        reasons = "; ".join(f"{each.name}: {each.reason}; {each.remedy}" for each in plan.refusals)
        raise UserError(f"there is no way to do this: {reasons or 'the prices name no hardware and no offer'}")
    found = answers(
        good_enough(plan.ways, job, _wanted(prices, job.model)), within_h=within_h, budget=args.budget
    )  # fmt: skip
    if args.plot is not None:
        from services.planner.batch.plots import draw_batch

        title = f"{job.work.requests:,} x ({job.work.shared} + {job.work.own} + {job.work.output}), {job.model.name}"
        for path in draw_batch(plan.ways, title, args.plot):
            sys.stderr.write(f"drawn: {path}\n")
    if args.json:
        text = orjson.dumps(as_json(job, prices, plan, found), option=orjson.OPT_INDENT_2)
        sys.stdout.write(text.decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines(job, prices, plan, found)) + "\n")
    return 0


def _sampled(args: argparse.Namespace, job: BatchJob, prices: PriceFile) -> tuple[BatchJob, list[Way]]:
    gpu = None if args.sampled_gpu is None else find_gpu(args.sampled_gpu)
    if not (10 <= args.sample_size <= 2_000 and 2 <= args.at_once <= 256):
        raise UserError("--sample-size must be within 10 and 2000, --at-once within 2 and 256")
    if not 2 <= job.work.output <= MAX_SAMPLE_OUTPUT:
        raise UserError(f"--output {job.work.output}: must be within 2 and {MAX_SAMPLE_OUTPUT} with --sample")
    if not (0 < args.limit_s <= 7_200 and 0 < args.request_s <= 600 and args.engine_per_hour >= 0):
        raise UserError(
            "--limit-s must be within 0 and 7200, --request-s within 0 and 600, --engine-per-hour not negative"
        )
    prompts = read_prompts(args.sample, args.sample_size)
    loops = [(at_once, job.work.output, texts) for at_once, texts in divided(prompts, args.at_once)]
    sys.stderr.write(f"running {len(prompts)} prompts on engine {args.engine}, at most {args.limit_s:g} s\n")
    try:
        engine = sampled_engine(run_loops(args.engine, loops, limit_s=args.limit_s, request_s=args.request_s))
    except ValueError as error:
        raise UserError(f"--sample {args.sample}: {error}") from None
    ways = measured_ways(job, engine, f"{args.engine}, sampled", _wanted(prices, job.model), args.engine_per_hour)
    return (job if gpu is None else _corrected(args, job, engine, gpu)), ways


def _corrected(args: argparse.Namespace, job: BatchJob, engine: SampledEngine, gpu: Gpu) -> BatchJob:
    cached = round(engine.prompt - engine.new)
    work = replace(
        job.work, shared=cached, own=max(1, round(engine.new)), output=max(1, round(engine.output(job.work.output)))
    )  # fmt: skip
    hours = engine.hours(work.requests, engine.at_once, work.output).value
    try:
        deployment = Deployment(model=job.model, gpu=gpu, precision=args.sampled_precision)
        factor = sample_factor(deployment, work, engine.at_once, hours)
    except ValueError as error:
        raise UserError(f"--sampled-gpu {gpu.name}: {error}") from None
    return replace(job, factors={gpu.name: factor})


def _job(args: argparse.Namespace) -> BatchJob:
    model = find_model(args.model)
    try:
        return BatchJob(
            work=BatchWork(requests=args.requests, shared=args.shared, own=args.own, output=args.output),
            model=model,
            gpu=None if args.gpu == "none" else find_gpu(args.gpu),
            smaller=_smaller(args.smaller, model),
            draft=_draft(args.draft, model),
            alpha=args.alpha,
            counts=_counts(args.gpus),
            refined=args.refine,
            best=args.best,
            rho=args.rho,
            quality_loss=args.quality_loss,
        )
    except ValueError as error:
        raise UserError(str(error)) from None


def _smaller(given: str | None, model: Model) -> tuple[Model, ...]:
    if given is None:
        return tuple(each for each in map(find_model, USUAL_SMALLER) if each.parameters < model.parameters)
    return tuple(find_model(name.strip()) for name in given.split(",") if name.strip()) if given != "none" else ()


def _draft(given: str | None, model: Model) -> Model | None:
    if given is None:
        usual = find_model(USUAL_DRAFT)
        return usual if usual.parameters < model.parameters else None
    return None if given == "none" else find_model(given)


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 1_024:
        raise UserError(f"--gpus {text!r}: give whole numbers within 1 and 1024, such as 1,2,4,8")
    return tuple(found)


def _hours(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(m|min|h|d)", text.strip())
    hours = float(match[1]) * HOURS[match[2]] if match else 0.0
    if hours <= 0:
        raise UserError(f"--within {text!r}: give a time such as 5h, 90m or 2d")
    return hours


def _wanted(prices: PriceFile, model: Model) -> float | None:
    return prices.scores.get(model.name)
