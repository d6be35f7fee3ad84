"""``railbus bench``: measure an engine with and without speculative decoding."""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, get_args

from services.cli.bench.arms import BenchArm, abba_order, build_arms, catalogue_entry, require_drafting
from services.cli.bench.runner import BenchRunError, measure, write_result
from services.cli.commands.plan import run_planner
from services.cli.common import check_writable, number, run_coroutine, whole_number
from services.cli.tree.extras import bring_weights, need_embedded
from services.runtime.errors import UserError
from services.runtime.process import EXIT_INTERRUPTED
from services.worker.engine import EngineName

MAX_RUNS: Final = 64

MAX_CLOSED_LOOPS: Final = 64

MAX_REPEATS: Final = 32
"""Maximum number of repeats of a closed loop. A larger value of ``--repeats`` is the maximum instead."""

BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "requests": (0, 2_000), "prompt": (1, 32_768), "output": (2, 4_096), "repeats": (1, 100), "temperature": (0, 2),
    "seed": (0, 2**31),
}  # fmt: skip
"""Minimum and maximum of flags, as the benchmark has them (``services/generator/bench/workload.py``)."""

MAX_RATE: Final = 1_000

PLOT_TYPES: Final = (".png", ".svg")
"""File types that ``railbus plan`` can draw."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    whats = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    about = (
        "measure an engine with random arrivals (open loops) and with a fixed number of requests at once (closed loops)"
    )
    _engine(whats.add_parser("engine", help=about, description=about))
    report = whats.add_parser("report", help="report on a saved result, or compare two results (--against)")
    report.add_argument("result", help="file written by `railbus bench engine --out`")
    report.add_argument(
        "flags", nargs=argparse.REMAINDER, help="further options: --against RESULT, --json, --plot FILE|DIR"
    )


def run(args: argparse.Namespace) -> int:
    """Return 0 for success, 2 for a usage error, or 130 after Ctrl-C or SIGTERM.

    If the benchmark fails, return its exit code.
    """
    if args.what == "report":
        return run_planner("bench", args.result, *args.flags)
    if not args.gammas.strip():
        raise UserError("--gammas is empty: give how many tokens are drafted, such as 4, or 2,4,8")
    compared = build_arms(
        args.engine, _numbers("--gammas", args.gammas, 1, 64), _env(args.plain), _env(args.speculative)
    )
    if not args.speculative:
        require_drafting(args.engine, os.environ)
    count = args.rounds * len(abba_order(compared, 1))
    if not 1 <= count <= MAX_RUNS:
        raise UserError(f"--rounds {args.rounds} makes {count} runs; 1 to {MAX_RUNS} are possible")
    runs = abba_order(compared, args.rounds)
    workload = _workload(args)
    if args.out is not None:
        check_writable("--out", args.out)
    if args.plot is not None:
        _check_plot(args.plot)
    flags = {name: getattr(args, name) for name in ("gpu", "target", "draft", "precision", "budget")}
    catalogue, limits = catalogue_entry(args.engine, {**os.environ, **compared[0].env}, flags), _limits(args)
    # What only the report needs is checked before minutes of measuring, not after them.
    if code := run_planner("bench-check", *limits, *(f"--{name}={value}" for name, value in catalogue.items())):
        return code
    if args.engine == "llama":
        need_embedded()
        if code := run_coroutine(_bring_weights(compared)):
            return code
    try:
        measured = measure(runs, workload, args.limit_s)
    except BenchRunError as failed:
        return failed.code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    with tempfile.TemporaryDirectory(prefix="railbus-bench-") as folder:
        out = args.out or Path(folder) / "result.json"
        write_result(out, compared, workload, measured, catalogue)
        options = ["--json"] if args.json else []
        options += ["--plot", str(args.plot)] if args.plot is not None else []
        return run_planner("bench", str(out), *limits, *options)


def _limits(args: argparse.Namespace) -> list[str]:
    given = {
        "--slo-ttft-ms": args.slo_ttft_ms, "--slo-token-ms": args.slo_token_ms, "--class": args.service_class,
        "--policy": args.policy,
    }  # fmt: skip
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _check_plot(path: Path) -> None:
    # The planner says the same, but only after the measurement.
    if path.suffix and path.suffix not in PLOT_TYPES and not path.is_dir():
        raise UserError(
            f"--plot {path}: the file must end in {' or '.join(PLOT_TYPES)}; a folder gets one file per panel"
        )
    if find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib: pip install 'railbus[plots]', or pip install matplotlib")


async def _bring_weights(compared: Sequence[BenchArm]) -> int:
    for arm in compared:
        await bring_weights(arm.env)
    return 0


def _engine(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    load.add_argument(
        "--engine", choices=get_args(EngineName), default="simulated", help="engine to measure (default: %(default)s)"
    )
    load.add_argument("--rate", type=number, default=3.0, help="requests per second in the open loops (default: 3)")
    load.add_argument(
        "--requests",
        type=int,
        default=30,
        help="requests in each open loop; 0 skips the open loops (default: %(default)s)",
    )
    load.add_argument(
        "--prompt", type=int, default=512, help="tokens per prompt in the open loops (default: %(default)s)"
    )
    load.add_argument(
        "--output", type=int, default=50, help="maximum number of tokens per answer (default: %(default)s)"
    )
    load.add_argument(
        "--batches",
        default="1,2,4",
        help="numbers of requests at once in the closed loops; empty skips the closed loops (default: %(default)s)",
    )
    load.add_argument(
        "--prompts", default="128,1024", help="tokens per prompt in the closed loops (default: %(default)s)"
    )
    often = (
        f"repeats of the closed loop with most requests at once (default: 3); the others get more, up to {MAX_REPEATS}"
    )
    load.add_argument("--repeats", type=int, default=3, help=often)
    load.add_argument("--temperature", type=number, default=0.0, help="sampling temperature; 0 is greedy (default: 0)")
    load.add_argument(
        "--seed", type=whole_number, default=1, help="seed of prompts, arrivals and sampling (default: %(default)s)"
    )
    what = parser.add_argument_group("variants that are compared")
    what.add_argument(
        "--gammas",
        default="4",
        help="number of tokens drafted per step; several numbers, such as 2,4, are compared (default: %(default)s)",
    )
    for name, which in (
        ("plain", "without drafting"),
        ("speculative", "with drafting; {gamma} stands for the number of --gammas"),
    ):
        what.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME=VALUE", help=f"setting of the engine {which}"
        )
    what.add_argument(
        "--rounds",
        type=whole_number,
        default=1,
        help="number of rounds; each measures all variants in order, then in reverse order (default: %(default)s)",
    )
    about = parser.add_argument_group(
        "properties of the engine, for the prediction; known with --engine simulated, and llama without"
        " RAILBUS_MODEL_PATH; else give all or none"
    )
    about.add_argument("--gpu", help="name of the GPU in the catalogue, such as h100")
    about.add_argument("--target", help="target model: its name in the catalogue, or its config.json")
    about.add_argument("--draft", help="draft model: its name in the catalogue, its config.json, or none")
    about.add_argument("--precision", help="precision of the linear layers, such as bf16, fp8 or int4")
    about.add_argument("--budget", help="maximum number of prompt tokens in an engine step")
    ends = parser.add_argument_group("bounds and results")
    ends.add_argument(
        "--limit-s",
        type=float,
        default=300.0,
        help="seconds for all runs, without loading; then no further request is sent (default: 300)",
    )
    ends.add_argument("--request-s", type=float, default=60.0, help="timeout of a request, in seconds (default: 60)")
    ends.add_argument(
        "--slo-ttft-ms",
        type=float,
        help="maximum time to the first token of a good request (default: that of --class, or 200)",
    )
    ends.add_argument(
        "--slo-token-ms",
        type=float,
        help="maximum mean time between tokens of a good request (default: that of --class, or 50)",
    )
    ends.add_argument("--class", dest="service_class", metavar="NAME", help="class whose limits define a good request")
    ends.add_argument(
        "--policy", type=Path, metavar="DIR", help="folder of the policy with the class (default: the built-in policy)"
    )
    ends.add_argument(
        "--out", type=Path, help="write the result to this file, for `bench report` and `plan latency --calibrate`"
    )
    ends.add_argument("--json", action="store_true", help="print one JSON object")
    ends.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw into a .png or .svg file, or into a folder")


def _workload(args: argparse.Namespace) -> dict[str, Any]:
    for name, (least, most) in BOUNDS.items():
        if not least <= (value := getattr(args, name)) <= most:
            raise UserError(f"--{name} {value}: must be within {least} and {most}")
    if not 0 < args.rate <= MAX_RATE:
        raise UserError(f"--rate {args.rate:g}: must be above 0 and at most {MAX_RATE}")
    batches = _numbers("--batches", args.batches, 1, 256)
    cells = [
        {"batch": batch, "prompt": prompt, "repeats": _repeats(args.repeats, batch, max(batches))}
        for batch in batches
        for prompt in _numbers("--prompts", args.prompts, 1, 32_768)
    ]
    streams = [
        {"cache": cache, "rate": args.rate, "requests": args.requests, "prompt": args.prompt}
        for cache in ("cold", "warm")
        if args.requests
    ]
    if len(cells) > MAX_CLOSED_LOOPS:
        raise UserError(
            f"--batches and --prompts make {len(cells)} closed loops; at most {MAX_CLOSED_LOOPS} are possible"
        )
    if not cells and not streams:
        raise UserError("there is nothing to measure: give --batches and --prompts, or --requests")
    if not (0 < args.limit_s <= 7_200 and 0 < args.request_s <= 600):
        raise UserError("--limit-s must be within 0 and 7200, --request-s within 0 and 600")
    return {
        "engine": args.engine,
        "cells": cells,
        "streams": streams,
        "output": args.output,
        "temperature": args.temperature,
        "seed": args.seed,
        "request_s": args.request_s,
    }


def _repeats(largest: int, batch: int, most: int) -> int:
    return max(largest, min(MAX_REPEATS, largest * most // batch))


def _numbers(flag: str, text: str, least: int, most: int) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = (least - 1,)
    if any(not least <= number <= most for number in found) or len(set(found)) < len(found):
        raise UserError(f"{flag} {text!r}: give different whole numbers within {least} and {most}, such as 1,2,4")
    return found


def _env(pairs: list[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("RAILBUS_"):
            raise UserError(f"{pair!r}: give a setting as RAILBUS_NAME=VALUE")
        found[name] = value
    return found
