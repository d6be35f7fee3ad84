"""Tests of the command ``railbus bench engine`` with a running engine, and of ``railbus plan`` with its result."""

import json
import os
import subprocess
import sys

import pytest

LONGEST_S = 240


def railbus(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        capture_output=True, text=True, timeout=LONGEST_S, check=False, env={**os.environ, **env},
    )  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "result.json"
    done = railbus(
        "bench", "engine", "--engine", "simulated", "--batches", "1,4", "--prompts", "64,512", "--repeats", "1",
        "--requests", "5", "--rate", "20", "--prompt", "200", "--output", "24", "--gammas", "4", "--json",
        "--out", str(out), RAILBUS_SIM_TIME_SCALE="0.4",
    )  # fmt: skip
    return out, done


def test_a_bench_measures_both_arms_and_predicts_them(measured):
    _, done = measured
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["runs"] == ["plain", "speculative", "speculative", "plain"]
    assert {(each["arm"], each["cache"]) for each in told["open_loops"]} == {
        (arm, cache) for arm in ("plain", "speculative") for cache in ("cold", "warm")
    }
    assert all(each["requests"] == 10 and each["errors"] == 0 for each in told["open_loops"])
    assert told["calibration"]["alpha"]["speculative"] == pytest.approx(0.8, abs=0.12)
    assert len(told["calibration"]["rows"]) == 2 * 2 * 2 * 2
    assert len(told["calibration"]["regrets"]) == 4
    assert all(cost["memory_mib"] > 0 for cost in told["costs"])


def test_the_result_calibrates_a_plan_and_is_reported_again(measured):
    out, _ = measured
    for arguments in (("plan", "latency", "--calibrate", str(out)), ("bench", "report", str(out))):
        done = railbus(*arguments)
        assert done.returncode == 0, done.stderr
        assert "alpha, speculative" in done.stdout


def test_a_run_that_cannot_start_is_the_benchs_answer():
    done = railbus("bench", "engine", "--engine", "simulated", "--requests", "1", RAILBUS_SIM_BATCH="0")
    assert done.returncode == 2
    assert "RAILBUS_SIM_BATCH" in done.stderr
    assert "Traceback" not in done.stderr
    done = railbus("bench", "engine", "--engine", "simulated", "--rate", "-1")
    assert done.returncode == 2
    assert "rate" in done.stderr


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--target", "gpt-9"), "model 'gpt-9' is not in the catalogue"),
        (("--slo-ttft-ms", "0"), "must be above 0"),
    ],
)
def test_a_mistake_that_only_the_report_sees_is_told_before_the_runs(flags, sentence):
    done = railbus("bench", "engine", "--engine", "simulated", "--requests", "1", *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "run 1 of" not in done.stderr


def test_a_plan_as_a_person_asks_for_it():
    done = railbus(
        "plan", "latency", "--gpu", "h100", "--target", "gemma-3-27b", "--draft", "gemma-3-4b", "--alpha", "0.8",
        "--prompt", "512", "--output", "50",
    )  # fmt: skip
    assert done.returncode == 0
    assert "best gamma 3, 1.53 times" in done.stdout
    assert "paid for" in done.stdout
    assert railbus("plan", "latency", "--alpha", "2").returncode == 2
    assert "--alpha" in railbus("plan", "latency", "--help").stdout


def test_a_result_calibrates_a_serving_plan(measured):
    out, _ = measured
    done = railbus("plan", "serve", "--calibrate", str(out), "--users", "20", "--output", "24", "--json")
    assert done.returncode == 0, done.stderr
    (engine,) = json.loads(done.stdout)["engines"]
    assert engine["engine"] == "gemma-3-27b on h100, calibrated"
    assert engine["engines"] == 1


def test_a_sample_is_run_and_planned_with(tmp_path):
    path = tmp_path / "prompts.jsonl"
    texts = [f"Prompt number {number} asks for a short answer." for number in range(60)]
    path.write_text("\n".join(json.dumps({"body": {"messages": [{"content": text}]}}) for text in texts))
    done = railbus(
        "plan", "batch", "--sample", str(path), "--engine", "simulated", "--sample-size", "40", "--at-once", "4",
        "--output", "12", "--gpu", "none", "--smaller", "none", "--json", "--model", "gemma-3-27b",
        "--sampled-gpu", "h100", RAILBUS_SIM_TIME_SCALE="2", RAILBUS_SIM_GAMMA="0",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The engine takes twice the time of the law; the machine that simulates it adds some.
    assert 1.7 < found["question"]["factors"]["h100"] < 4
    corrected = next(way for way in found["ways"] if way["name"] == "1 x h100 rented, fp8")
    assert "by the sample x" in corrected["why"]
    ways = {way["name"]: way for way in found["ways"] if way["kind"] == "measured"}
    assert len(ways) == 6
    alone, four = ways["simulated, sampled, 1 at once"], ways["simulated, sampled, 4 at once"]
    assert alone["hours"]["value"] > 1.5 * four["hours"]["value"]
    half = ways["simulated, sampled, 4 at once, half the output"]
    assert half["hours"]["value"] < four["hours"]["value"]


def test_a_sample_on_an_engine_that_cannot_start_is_one_sentence(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("Hello\n" * 60)
    done = railbus("plan", "batch", "--sample", str(path), "--engine", "simulated", RAILBUS_SIM_GPU="h900")
    assert done.returncode == 2
    assert "the sample did not run" in done.stderr
    assert "Traceback" not in done.stderr
