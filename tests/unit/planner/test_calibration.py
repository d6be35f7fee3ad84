"""Test that a fit to data from a known roofline finds this roofline. Results that cannot be compared are refused."""

import itertools
import json
import random
from dataclasses import replace

import pytest

from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.speculation import tokens_per_step
from services.planner.__main__ import main
from services.planner.bench import calibration_report
from services.planner.bench.calibration import (
    _fitted,
    _tau,
    calibrate,
    median_error,
    regrets,
    unfitted_roofline,
    worst_error,
)
from services.planner.bench.closed_loops import ShapeMeasurement, _steps, alpha, by_position, rows
from services.planner.bench.fit import FittedRoofline, Prediction, fit_roofline, predict
from services.planner.bench.open_loops import BenchSlo, ratios, summary
from services.planner.bench.results import DraftCounts, RequestResult, read_result

TRUE = FittedRoofline(
    target=model("gemma-3-27b"), draft=model("gemma-3-4b"), precision="fp8", gpu=gpu("h200"), budget=16_384,
    flops=0.37, bandwidth=0.66, first_ms=2.5, token_ms=0.05, draft_cost=1.4, overhead=0.12,
)  # fmt: skip
ALPHA = 0.75


def shapes(roofline, gammas, *, batches=(1, 64)):
    for batch, prompt, gamma in itertools.product(batches, (64, 3_000), gammas):
        tau = tokens_per_step(ALPHA, gamma)
        row = ShapeMeasurement(
            arm=f"gamma-{gamma}" if gamma else "plain", gamma=gamma, batch=batch, prompt=prompt, context=prompt + 30,
            tau=tau, ttft_ms=0, token_ms=0, cycle_ms=0, sets=1,
        )  # fmt: skip
        ttft, token = roofline.ttft_ms(batch, prompt, gamma), roofline.token_ms_at(row, tau)
        yield ShapeMeasurement(
            **{name: getattr(row, name) for name in row.__slots__}
            | {"ttft_ms": ttft, "token_ms": token, "cycle_ms": token * tau}
        )


def true_tau(row):
    return tokens_per_step(ALPHA, round(row.gamma))


def start(**changes):
    about = {"target": TRUE.target, "draft": TRUE.draft, "precision": "fp8", "gpu": TRUE.gpu, "budget": TRUE.budget}
    return FittedRoofline(**about, **changes)


@pytest.mark.slow
def test_a_fit_recovers_the_roofline():
    known = list(shapes(TRUE, (0, 2, 5)))
    found = fit_roofline(start(), known)
    for name, within in (("flops", 0.01), ("bandwidth", 0.02), ("draft_cost", 0.05), ("overhead", 0.2)):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=within), name
    assert worst_error(predict(found, known, true_tau)) < 0.02
    assert median_error(predict(found, known, true_tau)) < 0.005


def test_batch_one_says_what_larger_batches_take():
    plain = replace(TRUE, token_ms=0.0, draft_cost=1.0)
    found = fit_roofline(start(), list(shapes(plain, (0, 4), batches=(1,))))
    assert worst_error(predict(found, list(shapes(plain, (0, 4), batches=(8, 64))), true_tau)) < 0.05


def test_a_thread_that_reads_and_multiplies_in_turn():
    about = {"target": model("smollm2-135m"), "draft": None, "precision": "int4", "gpu": gpu("cpu"), "budget": 128}
    true = FittedRoofline(**about, flops=0.27, bandwidth=0.4, first_ms=20.0)
    found = fit_roofline(FittedRoofline(**about), list(shapes(true, (0,), batches=(1,))))
    assert worst_error(predict(found, list(shapes(true, (0,), batches=(2, 4))), lambda _: 1.0)) < 0.05
    assert found.flops == pytest.approx(0.27, rel=0.05)


def test_regret_is_the_time_lost_by_the_choice():
    def prediction(arm, measured, predicted):
        row = ShapeMeasurement(
            arm=arm, gamma=0, batch=1, prompt=64, context=90, tau=1, ttft_ms=1, token_ms=measured, cycle_ms=1, sets=1
        )
        return Prediction(row, "a token", measured, predicted)

    (regret,) = regrets([prediction("plain", 10, 9), prediction("gamma-2", 8, 9.5), prediction("gamma-4", 9, 12)])
    assert (regret.chosen, regret.best, regret.regret) == ("plain", "gamma-2", 0.25)
    assert regrets([prediction("gamma-2", 8, 9.5), prediction("gamma-4", 9, 12)]) == ()
    (hardly,) = regrets([prediction("plain", 10, 10), prediction("gamma-2", 11, 9.8)])
    assert (hardly.chosen, hardly.regret) == ("plain", 0.0)


def looked_up(batch, tau, *, prompt=64, gamma=1.0):
    return ShapeMeasurement(
        arm="ngram", gamma=gamma, batch=batch, prompt=prompt, context=90, tau=tau, ttft_ms=50, token_ms=10 / tau,
        cycle_ms=10, sets=4,
    )  # fmt: skip


def test_acceptance_of_lookup_drafts_is_taken_from_prompts_of_that_length():
    about = {"target": model("smollm2-135m"), "draft": None, "precision": "int4", "gpu": gpu("cpu"), "budget": 128}
    known = [looked_up(1, 1.2), looked_up(1, 1.8, prompt=640)]
    tau = _tau(FittedRoofline(**about), {"ngram": 0.5}, known)
    assert tau(looked_up(4, 3.0)) == pytest.approx(1.2)
    assert tau(looked_up(4, 3.0, prompt=640)) == pytest.approx(1.8)
    assert tau(looked_up(4, 3.0, prompt=6_400)) == pytest.approx(1.5)


def test_at_one_batch_a_lookup_arm_differs_only_in_its_arithmetic():
    about = {"target": model("smollm2-135m"), "draft": None, "precision": "int4", "gpu": gpu("cpu"), "budget": 128}
    plain = FittedRoofline(**about, flops=0.27, bandwidth=0.4, first_ms=20.0)
    slower = replace(plain, flops=0.2)
    rows_of = [replace(row, arm="ngram", gamma=0.5) for row in shapes(slower, (0,), batches=(1,))]
    found = _fitted(FittedRoofline(**about), [*shapes(plain, (0,), batches=(1,)), *rows_of])
    assert found["ngram"] == replace(found["plain"], flops=found["ngram"].flops)
    assert found["ngram"].flops < found["plain"].flops


def test_steps_without_drafts_count_although_the_engine_omits_them():
    drafting = DraftCounts(steps=2, drafted=8, accepted=4)
    steps = ((10.0, 1), (20.0, 1), (30.0, 1), (40.0, 3), (50.0, 3))
    seen = RequestResult(due_ms=0, steps=steps, total_ms=50, usage=None, speculation=drafting)
    assert _steps(seen) == 4
    one_by_one = tuple((10.0 * n, 1) for n in range(1, 10))
    assert _steps(RequestResult(due_ms=0, steps=one_by_one, total_ms=90, usage=None, speculation=drafting)) == 4


def asked(draw, gamma, *, at=0.0, tokens=40, step_ms=10.0, error=None):
    """Return the record of a request that took a step every ``step_ms``, and drafted ``gamma`` tokens in each step."""
    steps, said, now, kept, places = [(30.0, 1)], 1, 30.0, 0, [0] * gamma
    while said < tokens:
        accepted = 0
        while accepted < min(gamma, tokens - said - 1) and draw.random() < ALPHA:
            places[accepted] += 1
            accepted += 1
        now, said, kept = now + step_ms, said + accepted + 1, kept + accepted
        steps.append((now, accepted + 1))
    drafting = {
        "steps": len(steps) - 1, "drafted": gamma * (len(steps) - 1), "accepted": kept, "accepted_by_position": places,
    }  # fmt: skip
    return {
        "due_ms": at, "steps": steps, "total_ms": now, "error": error,
        "usage": {"prompt_tokens": 100, "completion_tokens": tokens, "cached_tokens": 20},
        "speculation": drafting if gamma else None,
    }  # fmt: skip


def alike(draw, gamma, step_ms, batch):
    return {"requests": [asked(draw, gamma, step_ms=step_ms) for _ in range(batch)], "cores": 0.5}


def result(**changes):
    """Return the result of a benchmark of two arms, which ran in the order A B B A. ``changes`` replaces fields."""
    draw, runs = random.Random(4), []
    for arm, gamma, step_ms in (("plain", 0, 10.0), ("fast", 4, 14.0), ("fast", 4, 14.0), ("plain", 0, 10.0)):
        cells = [{"batch": b, "prompt": 100, "sets": [alike(draw, gamma, step_ms, b) for _ in "abc"]} for b in (1, 2)]
        arrived = [asked(draw, gamma, step_ms=step_ms, at=float(100 * i)) for i in range(12)]
        arrived[-1]["error"] = "timeout: not over"
        measured = {
            "engine": "simulated", "model": "m", "ready_s": 1.0, "settings": {"RAILBUS_SIM_GAMMA": str(gamma)},
            "machine": {"system": "Linux", "machine": "x", "cpus": 2}, "cells": cells,
            "streams": [{"cache": "cold", "rate": 10.0, "prompt": 100, "requests": arrived}],
            "cut": False, "wall_s": 10.0, "cpu_s": 5.0, "others_s": 1.0, "memory_mib": 100.0, "gpu_mib": None,
        }  # fmt: skip
        runs.append({"arm": arm, "measured": measured})
    return {
        "version": 1, "workload": {"seed": 1},
        "arms": {"plain": {"gamma": 0, "env": {"RAILBUS_SIM_GAMMA": "0"}},
                 "fast": {"gamma": 4, "env": {"RAILBUS_SIM_GAMMA": "4"}}},
        "catalogue": {"gpu": "h100", "target": "gemma-3-27b", "draft": "gemma-3-4b", "precision": "fp8",
                      "budget": "2048"},
        "runs": runs, **changes,
    }  # fmt: skip


def written(tmp_path, content, name="result.json"):
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return path


def test_rows_and_acceptance_are_what_was_drawn(tmp_path):
    found = read_result(written(tmp_path, result()))
    assert alpha(found.of("fast")) == pytest.approx(ALPHA, abs=0.05)
    assert alpha(found.of("plain")) is None
    assert by_position(found.of("fast"))[0] == pytest.approx(ALPHA, abs=0.08)
    assert by_position(found.of("plain")) == ()
    table = {(row.arm, row.batch): row for row in rows(found)}
    assert set(table) == {("plain", 1), ("plain", 2), ("fast", 1), ("fast", 2)}
    assert table["plain", 1].token_ms == pytest.approx(10)
    assert table["plain", 2].prompt == 80
    assert table["fast", 1].gamma == 4
    assert table["fast", 1].token_ms == pytest.approx(14 / tokens_per_step(ALPHA, 4), rel=0.2)


def test_processor_time_leaves_out_what_others_took(tmp_path):
    found = read_result(written(tmp_path, result()))
    for row, own in zip(rows(found), rows(found, processor=True), strict=True):
        assert own.token_ms == pytest.approx(row.token_ms / 2)
        assert own.ttft_ms == pytest.approx(row.ttft_ms / 2)


def test_open_loops_are_counted_with_their_errors(tmp_path):
    found = read_result(written(tmp_path, result()))
    plain, fast = summary(found, BenchSlo(ttft_ms=200, token_ms=9))
    assert (plain.requests, plain.errors, plain.good) == (24, 2, 0)
    assert fast.good == pytest.approx(22 / 24)
    assert fast.goodput > 0
    assert plain.token.p50.value == pytest.approx(10)
    assert plain.cached == pytest.approx(0.2)
    by_what = {each.what: each.ratio for each in ratios(found)}
    assert by_what["a token"].high < 1
    assert by_what["first token"].value == 1
    verdicts = {each.what: each.verdict for each in ratios(found)}
    assert verdicts == {"a token": "faster", "whole answer": "faster", "first token": "no difference shown"}
    assert all(len(each.by_run) == 2 for each in ratios(found))


@pytest.mark.slow
def test_the_report_says_all_of_it(tmp_path, capsys):
    path = written(tmp_path, result())
    assert main(["bench", str(path)]) == 0
    out = capsys.readouterr().out
    for part in ("runs: plain fast fast plain", "faster", "requests/s; first token", "alpha, fast",
                 "median error", "choosing the arm"):  # fmt: skip
        assert part in out
    assert main(["bench", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"]["alpha"]["fast"] == pytest.approx(ALPHA, abs=0.05)
    assert main(["bench", str(path), "--class", "voice"]) == 0
    assert main(["bench", str(path), "--class", "gold"]) == 2
    assert "--class gold: the classes of this policy are batch, chat, voice" in capsys.readouterr().err
    assert main(["latency", "--calibrate", str(path)]) == 0
    assert "error" in capsys.readouterr().out
    assert main(["bench", str(path), "--against", str(path)]) == 0
    told = capsys.readouterr().out
    assert "+0.0%" in told
    assert "batch 2, prompt 80" in told
    assert "10/s, cold" in told
    assert calibration_report.as_json(calibrate(read_result(path)))["machines"]["plain"]["gpu"] == "h100"


@pytest.mark.slow
def test_drawings_of_a_bench(tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["bench", str(written(tmp_path, result())), "--plot", str(tmp_path / "drawn")]) == 0
    drawn = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert drawn == {"first-token.png", "a-token.png", "predicted.png", "acceptance.png"}


def changed(where, value):
    content = result()
    *path, last = where
    place = content
    for key in path:
        place = place[key]
    place[last] = value
    return content


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("runs", 1, "measured", "model"), "other", "runs of different model cannot be compared"),
        (("runs", 2, "measured", "machine"), {"cpus": 64}, "different cpus, machine, system"),
        (("runs", 2, "measured", "settings"), {"RAILBUS_SIM_GAMMA": "4", "RAILBUS_X": "1"}, "different RAILBUS_X"),
        (("runs", 2, "measured", "settings"), {"RAILBUS_SIM_GAMMA": "5"}, "another RAILBUS_SIM_GAMMA than its arm"),
        (("runs", 3, "arm"), "strange", "runs of strange but no such arm"),
        (("arms",), {"fast": {"gamma": 4, "env": {}}}, "one must be called 'plain'"),
        (("version",), 9, "format 9"),
        (("runs",), "nothing", "is not a result of `railbus bench engine`"),
        (("catalogue", "gpu"), "h900", "GPU 'h900' is not in the catalogue"),
        (("catalogue",), {"gpu": "h100"}, "catalogue lacks"),
        (("catalogue", "precision"), "fp3", "precision 'fp3'"),
        (("catalogue", "budget"), "x", "budget 'x' must be a whole number within 1 and 1,000,000,000"),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, capsys, where, value, message):
    assert main(["bench", str(written(tmp_path, changed(where, value)))]) == 2
    err = capsys.readouterr().err
    assert err.startswith("railbus bench: ")
    assert message in err


def test_an_arm_with_a_secret_is_compared_with_runs_that_do_not_tell_it(tmp_path):
    content = result()
    key, url = "RAILBUS_UPSTREAM_KEY", "RAILBUS_UPSTREAM_URL"
    content["arms"]["fast"]["env"] |= {key: "sk-secret", url: "http://me:sk-secret@host/v1"}
    for run in content["runs"]:
        if run["arm"] == "fast":
            run["measured"]["settings"] |= {key: "(set)", url: "http://host/v1"}
    assert len(read_result(written(tmp_path, content)).of("fast")) == 2


def test_benches_of_different_workloads_are_refused(tmp_path, capsys):
    first = written(tmp_path, result())
    second = written(tmp_path, result(workload={"seed": 2}), "second.json")
    assert main(["bench", str(first), "--against", str(second)]) == 2
    assert "results of different workload seed cannot be compared" in capsys.readouterr().err


def test_without_closed_loops_nothing_is_calibrated(tmp_path, capsys):
    content = result()
    for each in content["runs"]:
        each["measured"]["cells"] = []
    path = written(tmp_path, content)
    assert main(["bench", str(path)]) == 0
    assert "predict" not in capsys.readouterr().out
    assert main(["latency", "--calibrate", str(path)]) == 2
    assert "no closed loops" in capsys.readouterr().err


def test_closed_loops_of_answers_in_one_piece_still_give_a_report(tmp_path, capsys):
    content = result()
    for each in content["runs"]:
        for cell in each["measured"]["cells"]:
            for one in cell["sets"]:
                for request in one["requests"]:
                    request["steps"] = [(90.0, 40)]
    path = written(tmp_path, content)
    assert main(["bench", str(path)]) == 0
    out = capsys.readouterr().out
    assert "requests/s; first token" in out
    assert "no prediction: no repetition of a closed loop has all answers, each in several pieces" in out
    assert main(["bench", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"] is None


@pytest.mark.parametrize("draft", ["ngram", "none"])
def test_an_engine_may_have_no_draft_model(draft):
    about = {"gpu": "h100", "target": "gemma-3-27b", "draft": draft, "precision": "fp8", "budget": "2048"}
    assert unfitted_roofline(about).draft is None


ENGINE = ("--gpu=h100", "--target=gemma-3-27b", "--draft=none", "--precision=fp8", "--budget=2048")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--gpu=h900",), "GPU 'h900' is not in the catalogue"),
        (("--target=gpt-9",), "model 'gpt-9' is not in the catalogue"),
        (("--draft=gpt-9",), "model 'gpt-9' is not in the catalogue"),
        (("--precision=fp3",), "precision 'fp3' is not known"),
        (("--budget=0",), "budget '0' must be a whole number"),
        (("--slo-ttft-ms=0",), "--slo-ttft-ms and --slo-token-ms must be above 0"),
        (("--class=gold",), "--class gold: the classes of this policy are batch, chat, free, voice"),
        (("--class=free",), "--class free has no objectives"),
    ],
)
def test_what_a_report_cannot_use_is_told_before_a_bench(tmp_path, capsys, flags, sentence):
    (tmp_path / "policy.toml").write_text("[classes.free]\n")
    policy = f"--policy={tmp_path}"
    assert main(["bench-check", policy, *ENGINE]) == 0
    assert main(["bench-check", policy, "--class=voice"]) == 0
    assert main(["bench-check", policy, *ENGINE, *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith("railbus bench: ")
    assert sentence in err
    assert err.count("\n") == 1
