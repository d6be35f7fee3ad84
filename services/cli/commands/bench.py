"""``railbus bench``: measure an engine with and without speculative decoding."""

import argparse
import os
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, get_args

from services.cli.bench.arms import BenchArm, abba_order, build_arms, catalogue_entry, require_drafting
from services.cli.bench.runner import BenchRunError, measure, write_result
from services.cli.commands.plan import run_planner
from services.cli.common import check_writable, number, run_coroutine, whole_number
from services.cli.tree.extras import bring_weights, need_embedded
from services.runtime.classes.policy_deadlines import DEFAULT_POLICY
from services.runtime.classes.service_classes import find_class
from services.runtime.errors import UserError
from services.runtime.process import EXIT_INTERRUPTED
from services.worker.engine import EngineName

MAX_RUNS: Final = 64

MAX_REPEATS: Final = 32
"""Maximum number of repeats of a closed loop. A larger value of ``--repeats`` is the maximum instead."""

PLOT_TYPES: Final = (".png", ".svg")
"""File types that ``railbus plan`` can draw."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    whats = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    about = "measure an engine: open loops of seeded arrivals, closed loops of fixed shapes"
    _engine(whats.add_parser("engine", help=about, description=about))
    report = whats.add_parser("report", help="read a result again, or compare two (--against)")
    report.add_argument("result", help="what --out wrote")
    report.add_argument("flags", nargs=argparse.REMAINDER, help="--against RESULT, --json, --plot FILE|DIR")


def run(args: argparse.Namespace) -> int:
    """Return 0 for success, 2 for a usage error, 130 after Ctrl-C, and else the exit code of the failed run."""
    if args.what == "report":
        return run_planner("bench", args.result, *args.flags)
    if args.service_class is not None:  # fail before minutes of measuring, not after them
        find_class(args.policy or DEFAULT_POLICY, args.service_class)
    if not args.gammas.strip():
        raise UserError("--gammas is empty: give how many tokens are drafted, such as 4, or 2,4,8")
    compared = build_arms(
        args.engine, _numbers("--gammas", args.gammas, 1, 64), _env(args.plain), _env(args.speculative)
    )
    runs = abba_order(compared, args.rounds)
    if not args.speculative:
        require_drafting(args.engine, os.environ)
    if args.rounds < 1 or len(runs) > MAX_RUNS:
        raise UserError(f"--rounds {args.rounds} makes {len(runs)} runs; 1 to {MAX_RUNS} are possible")
    workload = _workload(args)
    if args.out is not None:
        check_writable("--out", args.out)
    if args.plot is not None:
        _check_plot(args.plot)
    flags = {name: getattr(args, name) for name in ("gpu", "target", "draft", "precision", "budget")}
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
        write_result(out, compared, workload, measured, catalogue_entry(args.engine, os.environ, flags))
        given = {
            "--slo-ttft-ms": args.slo_ttft_ms, "--slo-token-ms": args.slo_token_ms, "--class": args.service_class,
            "--policy": args.policy,
        }  # fmt: skip
        options = [part for name, value in given.items() if value is not None for part in (name, f"{value}")]
        options += ["--json"] if args.json else []
        options += ["--plot", str(args.plot)] if args.plot is not None else []
        return run_planner("bench", str(out), *options)


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
    load.add_argument("--engine", choices=get_args(EngineName), default="simulated", help="which engine (%(default)s)")
    load.add_argument("--rate", type=number, default=3.0, help="requests a second of the open loops (3)")
    load.add_argument("--requests", type=int, default=30, help="in each open loop; 0 leaves them out (30)")
    load.add_argument("--prompt", type=int, default=512, help="their tokens of prompt (512)")
    load.add_argument("--output", type=int, default=50, help="tokens of every answer, at most (50)")
    load.add_argument("--batches", default="1,2,4", help="requests at once in the closed loops; empty leaves them out")
    load.add_argument("--prompts", default="128,1024", help="tokens of prompt in the closed loops")
    often = f"of the largest batch; smaller ones are repeated more often, up to {MAX_REPEATS} times (3)"
    load.add_argument("--repeats", type=int, default=3, help=often)
    load.add_argument("--temperature", type=number, default=0.0, help="of sampling (0)")
    load.add_argument("--seed", type=whole_number, default=1, help="of prompts, arrivals and sampling (1)")
    what = parser.add_argument_group("arms")
    what.add_argument("--gammas", default="4", help="tokens drafted; several make an arm each (4)")
    for name, which in (("plain", "drafts nothing"), ("speculative", "drafts; {gamma} stands for the number")):
        what.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME=VALUE", help=f"setting of the arm that {which}"
        )
    what.add_argument("--rounds", type=int, default=1, help="times A B B A (1)")
    about = parser.add_argument_group("what the prediction is about; known for simulated and llama")
    about.add_argument("--gpu", help="accelerator, from the catalogue, such as h100")
    about.add_argument("--target", help="model that answers: from the catalogue, or a config.json")
    about.add_argument("--draft", help="model that drafts, likewise; or none")
    about.add_argument("--precision", help="of the linear layers: bf16, fp8 or int4")
    about.add_argument("--budget", help="tokens of prompt in an engine step")
    ends = parser.add_argument_group("bounds and results")
    ends.add_argument(
        "--limit-s", type=float, default=300.0, help="time for all runs; what is not begun then is not (300)"
    )
    ends.add_argument("--request-s", type=float, default=60.0, help="a request that takes longer has failed (60)")
    ends.add_argument("--slo-ttft-ms", type=float, help="first token of a good request (the class's, or 200)")
    ends.add_argument("--slo-token-ms", type=float, help="between its tokens (the class's, or 50)")
    ends.add_argument("--class", dest="service_class", metavar="NAME", help="class that says what a good request is")
    ends.add_argument("--policy", type=Path, metavar="DIR", help="policy with the class (the default one)")
    ends.add_argument("--out", type=Path, help="keep the result, for `bench report` and `plan latency --calibrate`")
    ends.add_argument("--json", action="store_true", help="one JSON object")
    ends.add_argument("--plot", type=Path, metavar="FILE|DIR", help="draw it: .png, .svg, or a folder for all")


def _workload(args: argparse.Namespace) -> dict[str, Any]:
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
