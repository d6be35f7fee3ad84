"""Run an experiment whose plan is on standard input, and write the report. ``railbus tune`` starts this program."""

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import orjson

from services.runtime import run
from services.runtime.errors import UserError
from services.runtime.settings import without_secrets
from services.tuner.candidates import Surroundings, defaults
from services.tuner.decide import gain_is_shown, percent
from services.tuner.experiment import (
    MAX_LOAD_REQUESTS,
    UNCHANGED,
    ExperimentError,
    Size,
    parse_settings,
    size,
)
from services.tuner.find_batch import batch_sizes, find_batch
from services.tuner.measurements import Load, gain
from services.tuner.plan import TunePlan
from services.tuner.report.document import About, Section, as_json, find_sections, tune_sections
from services.tuner.report.forms import env_file, markdown, page
from services.tuner.run.engine_process import EngineProcessError
from services.tuner.run.laboratory import Laboratory, Pilot, Shape
from services.tuner.search import Search

CAPACITY: Final = {
    "simulated": "RAILBUS_SIM_BATCH", "llama": "RAILBUS_LLAMA_SLOTS", "vllm": "RAILBUS_VLLM_MAX_SEQS",
    "openai": "RAILBUS_UPSTREAM_CONNECTIONS",
}  # fmt: skip
"""For each engine, the setting that limits its batch size."""

BATCH_ROUNDS: Final = 4

FLAGS: Final = {"budget_min": "budget"}
"""The flags of ``railbus tune`` for a number whose name is not that of their field in ``TunePlan``."""


async def main() -> None:
    try:
        plan = msgspec.json.decode(sys.stdin.buffer.read(), type=TunePlan)
        base, _ = plan.base(), (plan.rules(), plan.goals())
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`")
        raise UserError(f"--{FLAGS.get(name, name.replace('_', '-'))}: {said}" if place else said) from None
    except (msgspec.DecodeError, ExperimentError) as error:
        raise UserError(f"{error}") from None
    shape = Shape(prompt=plan.prompt, shared=plan.shared, output=plan.output, at_once=plan.at_once, seed=plan.seed)
    laboratory, began, load = (
        Laboratory(shape, apart=plan.apart, keep=plan.keep and not plan.apart),
        time.monotonic(),
        os.getloadavg()[0],
    )
    try:
        if plan.find:
            await _find(plan, base, laboratory, began, load)
        else:
            await _tune(plan, base, laboratory, began, load)
    except (EngineProcessError, ExperimentError) as error:
        raise UserError(f"{error}") from None
    finally:
        await laboratory.close()


async def _tune(plan: TunePlan, base: Mapping[str, str], laboratory: Laboratory, began: float, load: float) -> None:
    around = Surroundings(
        engine=plan.engine, cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        at_once=plan.at_once, gpu=shutil.which("nvidia-smi") is not None, models=plan.models, base=base,
    )  # fmt: skip
    budget_s = None if plan.budget_min is None else plan.budget_min * 60
    search = Search(
        plan.changes(around),  # before the pilot, because loading an engine may take minutes
        base=base, defaults=defaults(around), rules=plan.rules(), targets=plan.goals(), budget_s=budget_s,
    )  # fmt: skip
    pilot = await laboratory.pilot(base)
    smallest = Size(rounds=plan.rounds, load=MAX_LOAD_REQUESTS)
    while (change := search.next(time.monotonic() - began)) is not None:
        measured = _size(plan, pilot, search, None if budget_s is None else budget_s - (time.monotonic() - began))
        smallest = min(smallest, measured, key=lambda each: each.requests)
        trial = await laboratory.compare(search.best, change, measured)
        if change is UNCHANGED and trial.error:
            raise UserError(f"the baseline cannot be measured: {trial.error}")
        gained = change is not UNCHANGED and gain_is_shown(trial.rounds, search.rules)
        if (change.lossy or gained) and not trial.error:
            trial = await laboratory.with_quality(trial)
        decision = search.record(trial)
        if decision is not None:
            _say(f"{change.name}: {decision.outcome}; {decision.reason}")
        elif (found := gain(trial.rounds, search.rules.objective, search.rules.confidence)) is not None:
            _say(f"baseline against itself: {percent(found)}")
    about = _about(plan, laboratory.shape, pilot, began, load)
    reasons = {
        name: each.decision.reason
        for each in search.tried
        if each.decision.kept
        for name in each.trial.change.settings
    }  # fmt: skip
    _write(
        Path(plan.out), "Tuning report", tune_sections(search, about, smallest), as_json(search, about, smallest),
        env_file(search.best, reasons, about.command),
    )  # fmt: skip


def _size(plan: TunePlan, pilot: Pilot, search: Search, left_s: float | None) -> Size:
    coming = search.left + (2 if search.null is None else 1)
    return size(
        wanted=plan.requests,
        rounds=plan.rounds,
        seconds=None if left_s is None else max(0.0, left_s) / coming,
        start_s=0.0 if plan.keep else 2 * pilot.start_s,
        request_s=pilot.request_s,
    )


async def _find(plan: TunePlan, base: Mapping[str, str], laboratory: Laboratory, began: float, load: float) -> None:
    pilot = await laboratory.pilot(base)
    sizes = batch_sizes(plan.max_batch)
    env = {**base, CAPACITY[plan.engine]: base.get(CAPACITY[plan.engine], str(plan.max_batch))}
    if plan.engine == "llama":  # each step computes one token of each slot
        env.setdefault("RAILBUS_LLAMA_BATCH", str(max(128, plan.max_batch)))
    budget_s = None if plan.budget_min is None else plan.budget_min * 60
    each = max(1, plan.requests // (BATCH_ROUNDS * 2 * len(sizes)))
    rounds: list[dict[int, list[Load]]] = []
    for number in range(BATCH_ROUNDS):
        if len(rounds) >= 2 and budget_s is not None and time.monotonic() - began > budget_s:
            break
        found: dict[int, list[Load]] = {batch: [] for batch in sizes}
        async with laboratory.engine(env) as engine:
            for half, batch in enumerate((*sizes, *reversed(sizes))):
                count = max(2 * batch, each)
                found[batch].append(await laboratory.load(engine, count, f"{number}:{half}", at_once=batch))
        rounds.append(found)
        _say(f"round {number + 1} of {BATCH_ROUNDS}")
    finding = find_batch(rounds, slo_ttft_ms=plan.slo_ttft_ms, slo_token_ms=plan.slo_token_ms)
    about = _about(plan, laboratory.shape, pilot, began, load)
    sections = find_sections(finding, about, (plan.slo_ttft_ms, plan.slo_token_ms))
    kept = dict(base) if finding.best is None else {**base, CAPACITY[plan.engine]: str(finding.best)}
    reasons = {CAPACITY[plan.engine]: sections[0].sentences[0]}
    _write(Path(plan.out), "Batch size report", sections, {"version": 1, "about": about, "batch": finding},
           env_file(kept, reasons, about.command))  # fmt: skip


def _about(plan: TunePlan, shape: Shape, pilot: Pilot, began: float, load: float) -> About:
    what = " --find batch" if plan.find else ""
    base = [f"--set {name}={value}" for name, value in without_secrets(parse_settings(plan.settings)).items()]
    return About(
        command=" ".join(["railbus tune --engine", plan.engine + what, *base]),
        engine=pilot.ready.engine,
        model=pilot.ready.model,
        cpus=os.cpu_count() or 1,
        load=load,
        shape=(
            f"{shape.at_once} requests at once, about {shape.prompt} tokens of prompt of which {shape.shared:.0%} are"
            f" shared, at most {shape.output} of answer, greedy"
        ),
        kept=plan.keep,
        minutes=(time.monotonic() - began) / 60,
    )


def _write(folder: Path, title: str, sections: Sequence[Section], data: object, env: str) -> None:
    files = {
        "report.md": markdown(title, sections),
        "report.html": page(title, sections),
        "report.json": orjson.dumps(data, default=_plain, option=orjson.OPT_INDENT_2).decode() + "\n",
        "railbus.env": env,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror})") from None
    sys.stdout.write(
        "\n".join(sections[0].sentences) + f"\nwritten: {', '.join(str(folder / name) for name in files)}\n"
    )


def _plain(value: object) -> object:
    return msgspec.to_builtins(value)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    run(main, "tune")
