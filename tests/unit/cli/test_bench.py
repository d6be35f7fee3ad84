"""Test what ``railbus bench engine`` refuses before it starts an engine, what its result tells, and how it ends."""

import argparse
import signal
import sys

import msgspec
import pytest

from services.cli.__main__ import main
from services.cli.bench import runner
from services.cli.bench.arms import BenchArm, build_arms
from services.cli.bench.runner import measure, write_result
from services.cli.commands import bench, plan
from services.generator.bench.workload import Workload

ENDS_ITS_PARENT = """
import os, signal, sys, time
sys.stdin.read() if sys.argv[1] == "input" else time.sleep(0.3)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(20)
"""


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--rounds", "1000000000000"), "--rounds 1000000000000 makes 4000000000000 runs; 1 to 64 are possible"),
        (("--rounds", "0"), "--rounds 0 makes 0 runs"),
        (("--output", "1"), "--output 1: must be within 2 and 4096"),
        (("--output", "4097"), "--output 4097: must be within 2 and 4096"),
        (("--requests", "-1"), "--requests -1: must be within 0 and 2000"),
        (("--prompt", "0"), "--prompt 0: must be within 1 and 32768"),
        (("--repeats", "101"), "--repeats 101: must be within 1 and 100"),
        (("--temperature", "2.5"), "--temperature 2.5: must be within 0 and 2"),
        (("--seed", "-1"), "--seed -1: must be within 0 and 2147483648"),
        (("--rate", "0"), "--rate 0: must be above 0 and at most 1000"),
        (
            ("--batches", "1,2,3,4,5,6,7,8,9", "--prompts", "1,2,3,4,5,6,7,8"),
            "--batches and --prompts make 72 closed loops; at most 64 are possible",
        ),
    ],
)
def test_an_option_out_of_bounds_is_told_before_anything_starts(capsys, monkeypatch, flags, sentence):
    for name in ("measure", "run_planner"):
        monkeypatch.setattr(bench, name, lambda *_: pytest.fail("it started"))
    assert main(["bench", "engine", *flags]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"railbus bench: {sentence}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("flag", "value"), [(name, end) for name, ends in bench.BOUNDS.items() for end in ends])
def test_the_benchmark_takes_every_option_within_its_bounds(flag, value):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(["engine", f"--{flag}", f"{value}", "--rate", f"{bench.MAX_RATE}"])
    workload = bench._workload(args) | {"limit_s": 1.0}
    assert msgspec.convert(workload, Workload).output == args.output


def test_a_result_tells_no_secret(tmp_path):
    secret = {"RAILBUS_UPSTREAM_KEY": "sk-secret", "RAILBUS_UPSTREAM_URL": "http://me:sk-secret@host/v1"}
    out = tmp_path / "result.json"
    write_result(out, build_arms("openai", (4,), {}, secret), {}, [], {})
    text = out.read_text()
    assert "sk-secret" not in text
    assert "http://host/v1" in text


@pytest.fixture
def survived():
    """Let this process survive a SIGTERM that it does not expect."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("survived")
def test_a_bench_that_is_told_to_end_ends_its_engine(monkeypatch):
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", ENDS_ITS_PARENT, "input"])
    with pytest.raises(KeyboardInterrupt):
        measure([BenchArm("plain", 0, {})], {"request_s": 1.0}, 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("survived")
def test_a_plan_that_is_told_to_end_ends_its_planner(monkeypatch):
    monkeypatch.setattr(plan, "command", lambda *_: [sys.executable, "-c", ENDS_ITS_PARENT, "time"])
    assert plan.run_planner("batch") == 130
