"""Test that `tests/bench/gpu` repeats arms in reverse order, and that all arms together fill every row of its report.

Also test that a benchmark that continues after an interruption knows which runs are finished.
"""

import json
import sys

import pytest

from services.physics.catalogue.configs import model_from_config
from services.physics.catalogue.gpus import gpu
from services.physics.pairing import SpeculationPair
from services.physics.roofline import prefill_ms
from tests.bench.gpu import shapes
from tests.bench.gpu.__main__ import main
from tests.bench.gpu.arms import FULL, STAGES, runs
from tests.bench.gpu.rows import catalogue_name, rows, table
from tests.bench.gpu.state import State

H100 = gpu("h100")
CEILINGS = {
    "run": "ceilings",
    "gpu": "NVIDIA H100 80GB HBM3",
    "bytes_per_s": 3e12,
    "flops_bf16": 8e14,
    "flops_fp8": 1.5e15,
}


@pytest.fixture
def pair(tmp_path):
    models = [
        model_from_config(json.loads((shapes.make(tmp_path, name) / "config.json").read_text()), name=name)
        for name in ("27b", "4b")
    ]
    return SpeculationPair(target=models[0], draft=models[1], gpu=H100)


def found(pair, lines):
    return list(rows(lines, H100, pair.target, pair.draft, "fp8", FULL))


def measured(pair, run, arm):
    """Yield the result lines of a run of ``arm``, with predicted times in place of measured ones."""
    context = FULL.prompt + FULL.tokens // 2
    about = {
        "run": run, "model": arm.model, "gamma": arm.gamma, "alpha": arm.alpha, "runner": arm.runner, "kv": arm.kv,
        "schedule": arm.schedule, "loaded_s": 60.0, "room": None, "ttft_ms": 40.0,
    }  # fmt: skip
    for batch in FULL.batches:
        step = (pair.step_ms if arm.model == "target" else pair.draft_ms)(batch=batch, context=context)
        gain = pair.speedup(arm.alpha, arm.gamma, batch=batch, context=context)
        yield about | {
            "batch": batch, "prompt": FULL.prompt, "tokens": FULL.tokens, "ms_per_token": step / gain, "room": 70_000,
        }  # fmt: skip
    for prompt in FULL.first if arm.first else ():
        ttft = prefill_ms(pair.target, H100, "fp8", prompt, efficiency=pair.achieved)
        yield about | {"batch": 1, "prompt": prompt, "tokens": 2, "ms_per_token": 1.0, "ttft_ms": ttft}


def test_before_anything_was_measured_every_row_is_open(pair):
    assert all(row.measured is None for row in found(pair, []))
    assert "0 of " in table(found(pair, []), "h100")


def test_every_arm_fills_rows_and_all_of_them_fill_all(pair):
    lines, before = [CEILINGS], sum(row.measured is not None for row in found(pair, [CEILINGS]))
    for run, arm in runs(STAGES):
        lines += measured(pair, run, arm)
        after = sum(row.measured is not None for row in found(pair, lines))
        assert after > before or run.endswith(".2"), f"{run} fills no row"
        before = after
    assert not [row.name for row in found(pair, lines) if row.measured is None]


def test_a_machine_that_follows_the_law_is_off_by_nothing(pair):
    lines = [line for run, arm in runs(STAGES) for line in measured(pair, run, arm)]
    for row in found(pair, lines):
        if row.predicted is not None and row.measured is not None and row.unit in {"ms", "x"}:
            assert row.measured == pytest.approx(row.predicted)


def test_plain_and_speculation_run_forwards_and_then_backwards():
    names = [run for run, _ in runs(STAGES)]
    again = [run.removesuffix(".2") for run in names if run.endswith(".2")]
    assert again[::-1] == [run.removesuffix(".1") for run in names][: len(again)]
    assert len(set(names)) == len(names)
    assert not [run for run, _ in runs(STAGES, fp8=False) if "kv-fp8" in run]


def test_what_was_kept_is_not_run_again(tmp_path):
    state = State(tmp_path)
    assert state.longest_s() is None
    state.keep("target_v1.1", [{"batch": 1}], 40.0)
    state.keep("ceilings", [{"gpu": "x"}], 900.0)
    again = State(tmp_path)
    assert again.has("target_v1.1")
    assert not again.has("target_v1.2")
    assert again.longest_s() == 40.0
    assert {"batch": 1, "run": "target_v1.1"} in again.lines()


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"), ("NVIDIA L4", "l4"), ("Some other GPU", None),
    ],
)  # fmt: skip
def test_the_catalogues_name_of_a_gpu(told, name):
    assert catalogue_name(told) == name


def test_a_stage_that_does_not_exist_is_refused_by_name(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu", "--stage", "plain,later"])
    with pytest.raises(SystemExit):
        main()
    assert "later: there are all, install" in capsys.readouterr().err


def test_a_report_is_written_without_vllm(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("sys.argv", ["gpu", "--stage", "report", "--folder", str(tmp_path), "--gpu", "a100-80"])
    main()
    assert "a100-80, bf16: 0 of" in capsys.readouterr().out
    assert "| step of the target, batch 1 | open | 36" in (tmp_path / "rows.md").read_text()
