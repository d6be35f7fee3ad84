"""Test what ``railbus tune`` finds and measures.

With the simulated engine, it must keep the change that halves all times, and no other change. With a real model, it
must measure how much quality is lost by a change that alters answers.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from services.tuner.experiment import SettingsChange
from services.tuner.quality.tasks import TaskSet, task_set
from services.tuner.run import laboratory
from services.tuner.run.laboratory import Laboratory, Shape

LONGEST_S = 540
ATTEMPTS = 3
"""How often a planted gain is looked for, because other work of the machine may hide it. A change without a gain must
not be kept in any attempt."""

pytestmark = pytest.mark.slow


def tune(out, *flags, settings=None, **env):
    return subprocess.run(
        [
            sys.executable, "-m", "services.cli", "tune", "--out", str(out), *flags,
            *(flag for name, value in (settings or {}).items() for flag in ("--set", f"{name}={value}")),
        ],
        capture_output=True, text=True, timeout=LONGEST_S, check=False, env={**os.environ, **env},
    )  # fmt: skip


def searched(out, remedy, *flags, settings):
    """Run ``railbus tune`` until it keeps the change ``remedy``, at most ``ATTEMPTS`` times.

    Return the report of the last run, and the outcomes of all other changes in all runs.
    """
    others = []
    for attempt in range(ATTEMPTS):
        done = tune(out, *flags, "--seed", str(attempt), settings=settings)
        assert done.returncode == 0, done.stderr
        told = json.loads((out / "report.json").read_text())
        outcomes = {each["change"]["name"]: each["outcome"] for each in told["changes"]}
        others += [outcome for name, outcome in outcomes.items() if name != remedy]
        if outcomes[remedy] == "kept":
            return told, others
    pytest.fail(f"{remedy} was not found in {ATTEMPTS} attempts: {told['changes']}")


def test_simulated_finds_what_was_planted(tmp_path):
    told, others = searched(
        tmp_path, "sim_time_scale=0.3", "--engine", "simulated", "--no-list", "--at-once", "4", "--rounds", "4",
        "--requests", "128", "--try", "batching:RAILBUS_SIM_TIME_SCALE=0.3",
        "--try", "batching:RAILBUS_SIM_SCRIPT_RATE=0.5",
        "--try-lossy", "quantization:RAILBUS_SIM_PRECISION=int4", "--try", "batching:RAILBUS_SIM_PREFILL_BUDGET=2048",
        settings={"RAILBUS_SIM_BATCH": "16", "RAILBUS_SIM_TIME_SCALE": "0.6"},
    )  # fmt: skip
    # The planted gain halves all times. A larger batch, for instance, would have a price: longer gaps between tokens.
    assert "kept" not in others  # nothing gains, and what may change answers cannot be judged without a model
    assert told["best"]["RAILBUS_SIM_TIME_SCALE"] == "0.3"
    assert told["skipped"] == {"sim_prefill_budget=2048": "these are the settings already"}
    assert {each["item"]: each["state"] for each in told["guide"]}["batching"] == "ticked"
    assert all(each["rounds"] == 4 for each in told["changes"])
    assert told["size"]["requests"] == 128
    assert told["size"]["reason"] == "128 were asked for"
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "- [" not in (tmp_path / "report.md").read_text()
    shell = 'set -a; . ./railbus.env; printf %s "$RAILBUS_ENGINE $RAILBUS_SIM_TIME_SCALE"'
    read = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=20)
    assert read.stdout == "simulated 0.3"


def test_a_met_target_ends_it_and_a_budget_makes_it_smaller(tmp_path):
    done = tune(
        tmp_path, "--engine", "simulated", "--target", "first_token_p99_ms=60000", "--budget", "0.05", "--rounds", "3",
        settings={"RAILBUS_SIM_TIME_SCALE": "0.05"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["stopped"] == "all targets are met"
    assert told["changes"] == []
    assert "the budget leaves" in told["size"]["reason"]
    assert "gamma 0" in told["skipped"]


def test_find_batch_finds_where_a_bound_batch_stops_growing(tmp_path):
    """With an engine that runs four answers at once, the throughput stops growing at four concurrent requests."""
    done = tune(
        tmp_path, "--engine", "simulated", "--find", "batch", "--max-batch", "16", "--requests", "256",
        "--slo-ttft-ms", "60000", "--slo-token-ms", "60000",
        settings={"RAILBUS_SIM_BATCH": "4", "RAILBUS_SIM_TIME_SCALE": "0.5", "RAILBUS_SIM_GAMMA": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "report.json").read_text())["batch"]
    assert [row["batch"] for row in found["rows"]] == [1, 2, 4, 8, 16]
    assert found["knee"]["low"] <= 4 <= found["knee"]["high"]
    assert found["breaks_at"] is None
    assert "RAILBUS_SIM_BATCH=" in (tmp_path / "railbus.env").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--set", "RAILBUS_SIM_GPU=h900"), "GPU 'h900' is not in the catalogue"),
        (("--objective", "speed"), "there is no metric 'speed'"),
        (("--only", "magic"), "choose among quantization"),
        (("--rounds", "1"), "rounds"),
        (("--set", "PATH=/nowhere"), "give a setting of the engine"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, flags, said):
    done = tune(tmp_path, "--engine", "simulated", *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.llama
@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs the embedded engine's wheel")
async def test_what_a_lossy_change_costs_is_measured_on_a_real_model(monkeypatch):
    """The tuner measures on a real model how much quality a lossy setting costs. This test uses only a few tasks.

    `python -m tests.bench.tune_planted llama` runs all tasks, and measures the speed, too.
    """
    all_tasks = task_set()
    few = TaskSet(tasks=all_tasks.tasks[:8], texts=all_tasks.texts[:2])
    monkeypatch.setattr(laboratory, "task_set", lambda: few)
    base = {"RAILBUS_ENGINE": "llama", "RAILBUS_LLAMA_SLOTS": "2"}
    lossy = SettingsChange(name="llama_kv=q4_0", settings={"RAILBUS_LLAMA_KV": "q4_0"}, item="kv", lossy=True)

    found = await Laboratory(Shape(prompt=16, output=4)).quality(base, lossy)

    assert found is not None
    assert found.prompts == 8
    assert found.baseline_identical.value == 1
    assert found.identical.value < 1
    assert found.first_divergence is not None
    assert found.perplexity_rise is not None
    assert found.perplexity_rise.low <= found.perplexity_rise.value <= found.perplexity_rise.high
