"""``railbus tune``: start a process that searches for engine settings which improve an objective."""

import argparse
import json
import subprocess
from pathlib import Path
from typing import get_args

from services.cli.common import check_writable, number, run_coroutine, whole_number
from services.cli.program import command
from services.cli.tree.extras import bring_weights, need_embedded
from services.runtime.process import EXIT_INTERRUPTED, passing_sigterm_to
from services.worker.engine import EngineName


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=get_args(EngineName), default="llama", help="engine to tune (default: %(default)s)"
    )
    parser.add_argument(
        "--find", choices=("batch",), default="", help="instead, find the batch size at which throughput stops growing"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the baseline, such as RAILBUS_MODEL_PATH=FILE; repeatable",
    )
    what = parser.add_argument_group("what is tried")
    change = (
        "to try before the engine's own list: one or more NAME=VALUE, separated by spaces; may begin with an item of"
        " the tuning guide, such as speculation:"
    )
    what.add_argument("--try", dest="tries", action="append", default=[], metavar="CHANGE", help=f"a change {change}")
    what.add_argument(
        "--try-lossy",
        action="append",
        default=[],
        metavar="CHANGE",
        help="like --try, for a change that may alter answers",
    )
    what.add_argument(
        "--only",
        default="",
        metavar="ITEM,ITEM",
        help="of the engine's own list, try only these items of the tuning guide, such as kv,batching (default: all)",
    )
    what.add_argument("--no-list", action="store_true", help="do not try the engine's own list of changes")
    what.add_argument(
        "--models",
        action="append",
        default=[],
        metavar="PATH",
        help="another build of the model to try, such as a smaller quantization; repeatable",
    )
    rule = parser.add_argument_group("when a change is kept, and when the search ends")
    rule.add_argument("--objective", default="answer_p50_ms", help="metric that must improve (default: %(default)s)")
    rule.add_argument(
        "--margin",
        type=number,
        default=0.02,
        help="minimum gain as a share; the whole confidence interval must be above it (default: %(default)s)",
    )
    rule.add_argument(
        "--max-loss",
        type=number,
        default=0.01,
        help="maximum loss of quality by a lossy change, as a share (default: %(default)s)",
    )
    rule.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="METRIC=NUMBER",
        help="end the search when all targets are met, such as first_token_p99_ms=200",
    )
    rule.add_argument(
        "--accept", action="append", default=[], metavar="METRIC=NUMBER",
        help="a change may make this metric worse up to this value, such as token_p99_ms=100",
    )  # fmt: skip
    rule.add_argument(
        "--budget",
        type=number,
        metavar="MINUTES",
        help="try no further change after this number of minutes (default: no limit)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--requests",
        type=int,
        default=1_000,
        help="requests per change, with and without it together (default: %(default)s)",
    )
    load.add_argument(
        "--rounds",
        type=int,
        default=8,
        help="rounds per change, each in the order A B B A (A without, B with the change) (default: %(default)s)",
    )
    load.add_argument("--prompt", type=int, default=64, help="tokens per prompt (default: %(default)s)")
    load.add_argument(
        "--shared",
        type=number,
        default=0.5,
        help="prefix that all prompts have in common, as a share of a prompt (default: %(default)s)",
    )
    load.add_argument(
        "--output", type=int, default=16, help="maximum number of tokens of an answer (default: %(default)s)"
    )
    load.add_argument("--at-once", type=int, default=2, help="requests at once (default: %(default)s)")
    load.add_argument("--seed", type=whole_number, default=1, help="seed of the prompts (default: %(default)s)")
    load.add_argument("--apart", action="store_true", help="run one engine at a time, if memory holds only one")
    kept = "keep engines loaded between rounds, if a start takes minutes; use a larger --margin with it"
    load.add_argument("--keep-engines", dest="keep", action="store_true", help=kept)
    batch = parser.add_argument_group("with --find batch")
    batch.add_argument("--max-batch", type=int, default=32, help="largest batch size to measure (default: %(default)s)")
    batch.add_argument(
        "--slo-ttft-ms", type=number, default=200.0, help="maximum p99 of the time to the first token (default: 200)"
    )
    batch.add_argument(
        "--slo-token-ms", type=number, default=50.0, help="maximum p99 of the time between tokens (default: 50)"
    )
    parser.add_argument(
        "--out",
        default="tune",
        metavar="DIR",
        help="folder for report.html, .md, .json and railbus.env (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Return 0 for success, 2 for a usage error or a failed measurement, and 130 after Ctrl-C or SIGTERM."""
    check_writable("--out", Path(args.out) / "report.md")
    if args.engine == "llama":
        need_embedded()
        options = dict(pair.split("=", 1) for pair in args.set if "=" in pair)
        if code := run_coroutine(_bring(options)):
            return code
    process = subprocess.Popen(command("services.tuner"), stdin=subprocess.PIPE)  # noqa: S603 - our own program, no shell
    with passing_sigterm_to(process) as received:
        try:
            process.communicate(json.dumps(_plan(args)).encode())
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C reached the tuner too; it stops its engines
            return EXIT_INTERRUPTED
    return EXIT_INTERRUPTED if received else process.returncode


def _plan(args: argparse.Namespace) -> dict[str, object]:
    same = (
        "engine", "find", "tries", "models", "objective", "margin", "max_loss", "requests", "rounds", "prompt",
        "shared", "output", "at_once", "seed", "apart", "keep", "max_batch", "slo_ttft_ms", "slo_token_ms", "out",
    )  # fmt: skip
    return {name: getattr(args, name) for name in same} | {
        "settings": args.set,
        "lossy": args.try_lossy,
        "only": [item.strip() for item in args.only.split(",") if item.strip()],
        "own_list": not args.no_list,
        "targets": args.target,
        "accepted": args.accept,
        "budget_min": args.budget,
    }


async def _bring(options: dict[str, str]) -> int:
    await bring_weights(options)
    return 0
