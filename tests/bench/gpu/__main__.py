"""``python -m tests.bench.gpu``: measure the rows of RESULTS.md that need a GPU. This takes half an hour.

The stages run in this order: install, ceilings, plain, speculation, runners, kv, schedule, again, report. They are
described in ``tests/bench/gpu/README.md``. The results of each finished arm are kept in ``--folder``. If a run is cut
off, the same command continues it. An arm starts only if it is expected to end before ``--limit-s`` seconds are over.
Without ``--target`` and ``--draft``, the models have random weights in the shapes of Gemma 3, and vLLM is forced to
accept a fixed share of the drafts.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from services.physics.catalogue.configs import model_from_config
from services.physics.catalogue.gpus import gpu as from_catalogue
from services.physics.catalogue.precisions import Precision
from tests.bench.gpu import shapes
from tests.bench.gpu.arms import DRY, FULL, STAGES, Arm, Load, runs
from tests.bench.gpu.install import install, python_with_vllm
from tests.bench.gpu.rows import catalogue_name, rows, table
from tests.bench.gpu.state import State

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

FIRST_GUESS_S = 200.0
"""Assumed duration of an arm, as long as none has been measured."""
MARGIN = 1.2


def main() -> None:
    args = _arguments()
    stages = STAGES if args.stage == "all" else tuple(args.stage.split(","))
    deadline = time.monotonic() + args.limit_s
    state = State(args.folder / ("dry-run" if args.dry_run else "results"))
    if "install" in stages and not args.dry_run:
        install(args.folder, args.wheels, deadline - time.monotonic())
    left = _measure(args, stages, state, deadline) if set(stages) - {"install", "report"} else []
    if "report" in stages:
        _report(args, state)
    if left:
        print(f"{len(left)} runs are left ({left[0]} is next): run the same line again")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument(
        "--stage", default="all", help="stages to run, separated by commas: all, or some of " + ", ".join(STAGES)
    )
    parser.add_argument(
        "--limit-s", type=float, default=1_800, help="maximum duration of the run, in seconds (default: 1800)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "gpu",
        help="folder for the results, with which a later run continues (default: %(default)s)",
    )
    parser.add_argument(
        "--wheels",
        action="append",
        default=[],
        help="folder of wheels, if no package registry can be reached; repeatable",
    )
    parser.add_argument(
        "--target",
        type=Path,
        help="folder of a target model with weights (default: random weights in the shape of Gemma 3 27B)",
    )
    parser.add_argument("--draft", type=Path, help="folder of the draft model for --target")
    parser.add_argument("--gpu", help="name of the GPU in the catalogue (default: the GPU that is found, else h100)")
    parser.add_argument(
        "--dry-run", action="store_true", help="only test this program, with tiny models on the CPU build of vLLM"
    )
    args = parser.parse_args()
    if unknown := set(args.stage.split(",")) - {"all", *STAGES}:
        parser.error(f"--stage {', '.join(sorted(unknown))}: there are all, {', '.join(STAGES)}")
    if (args.target is None) != (args.draft is None):
        parser.error("give --target and --draft together")
    return args


def _measure(args: argparse.Namespace, stages: tuple[str, ...], state: State, deadline: float) -> list[str]:
    """Do the runs that have no result yet, until ``deadline``. Return the names of the runs that still have none."""
    python = python_with_vllm(args.folder)
    if python is None:
        sys.exit(
            f"no vLLM here: run --stage install, or call this with the Python that has it ({sys.executable} has not)"
        )
    if "ceilings" in stages and not args.dry_run and not state.has("ceilings"):
        lines = _told([str(python), str(HERE / "ceilings.py")], "CEILINGS", 120)
        if not lines:
            sys.exit("the GPU's ceilings could not be measured: nothing else is tried")
        state.keep("ceilings", lines, 0)
    models = dict(zip(("target", "draft"), _folders(args), strict=True))
    todo = [(run, arm) for run, arm in runs(stages, fp8=_precision(args, state) == "fp8") if not state.has(run)]
    while todo:
        run, arm = todo[0]
        remaining = deadline - time.monotonic()
        if remaining < (state.longest_s() or FIRST_GUESS_S) * MARGIN:
            break
        begun = time.monotonic()
        lines = _told(_command(args, python, models, arm, _precision(args, state)), "ARM", remaining)
        if lines:
            state.keep(run, [{**line, "model": arm.model} for line in lines], time.monotonic() - begun)
        todo.pop(0)
    return [run for run, _ in runs(stages, fp8=_precision(args, state) == "fp8") if not state.has(run)]


def _folders(args: argparse.Namespace) -> tuple[Path, Path]:
    if args.target is not None:
        return args.target, args.draft
    names = ("tiny", "tinier") if args.dry_run else ("27b", "4b")
    target, draft = (shapes.make(args.folder / "shapes", name) for name in names)
    return target, draft


def _gpu(args: argparse.Namespace, state: State) -> str:
    if args.gpu or args.dry_run:
        return args.gpu or "cpu"
    seen = next((line["gpu"] for line in state.lines() if line["run"] == "ceilings"), "")
    return catalogue_name(seen) or "h100"


def _precision(args: argparse.Namespace, state: State) -> Precision:
    return "bf16" if from_catalogue(_gpu(args, state)).flops_fp8 is None else "fp8"


def _command(args: argparse.Namespace, python: Path, models: dict[str, Path], arm: Arm, precision: str) -> list[str]:
    found = [str(python), str(HERE / "arm.py"), "--target", str(models[arm.model]), "--runner", arm.runner]
    found += ["--kv", arm.kv, "--precision", precision]
    load = _load(args)
    found += ["--batches", ",".join(map(str, load.batches)), "--prompt", str(load.prompt), "--tokens", str(load.tokens)]
    if arm.first:
        found += ["--first", ",".join(map(str, load.first))]
    if arm.gamma:
        found += ["--draft", str(models["draft"]), "--gamma", str(arm.gamma), "--alpha", str(arm.alpha)]
        found += ["--schedule", arm.schedule] if arm.schedule else []
    if args.target is not None:
        found.append("--real")
    return [*found, "--cpu", "--rounds", "1"] if args.dry_run else found


def _load(args: argparse.Namespace) -> Load:
    return DRY if args.dry_run else FULL


def _told(command: list[str], kind: str, limit_s: float) -> list[dict[str, object]]:
    """Run a command. Return the JSON object of each output line that begins with ``kind``, such as "ARM".

    If the command fails or takes longer than ``limit_s``, print the reason and return an empty list.
    """
    print("+", " ".join(Path(part).name for part in command[1:]), flush=True)
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        print(f"  did not end within {limit_s:.0f} s")
        return []
    if ended.returncode:
        print("  failed:", "\n  ".join(ended.stderr.strip().splitlines()[-6:]), flush=True)
        return []
    marked = [line for line in ended.stdout.splitlines() if line.startswith(f"{kind} ")]
    return [json.loads(line.removeprefix(f"{kind} ")) for line in marked]


def _report(args: argparse.Namespace, state: State) -> None:
    name = _gpu(args, state)
    target, draft = (
        model_from_config(json.loads((folder / "config.json").read_text(encoding="utf-8")), name=folder.name)
        for folder in _folders(args)
    )
    found = list(rows(state.lines(), from_catalogue(name), target, draft, _precision(args, state), _load(args)))
    text = table(found, f"{target.name} with {draft.name} on {name}, {_precision(args, state)}")
    (args.folder / "rows.md").write_text(text, encoding="utf-8")
    print(text, flush=True)


if __name__ == "__main__":
    main()
