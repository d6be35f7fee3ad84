"""Test the serving plan: its queueing model, its limits, and its report.

The queueing model is compared with exact formulas and with the scheduler of the simulated engine.
"""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.generator.engines.llama import LlamaSettings
from services.generator.engines.simulated.settings import SimulatedSettings
from services.generator.engines.vllm.settings import VllmSettings
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.deadlines import chance_of_waiting_at_most, mean_wait_ms
from services.physics.parallel import Layout
from services.planner.__main__ import main
from services.planner.bench.fit import FittedRoofline
from services.planner.bench.results import RunMeasurements
from services.planner.commands.promises import limits_of
from services.planner.serve.growth import growth
from services.planner.serve.measured import SLOTS, measured_capacity
from services.planner.serve.plan import READING, Demand, Limits, engine_kind, grown, missed, plan_serve
from services.planner.serve.queue import queue_times, split
from services.runtime.classes.service_classes import ServiceClasses
from tests.bench.serve_queue import CASES, errors
from tests.support.examples import examples

VOICE = limits_of(ServiceClasses().get("voice").slo)


def demand(**changes):
    usual = {"users": 1_000, "every_s": 60, "prompt": 512, "cached": 0, "output": 200, "limits": READING}
    return Demand(**{**usual, **changes})


def told(capsys, *flags):
    code = main(["serve", *flags])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8, 0.9])
def test_without_decoding_it_is_the_exact_queue(load):
    """With one prompt per step and answers of one token, the predicted waiting times are those of an M/D/1 queue."""
    seen = queue_times(lambda _, prompts: 10.0 * prompts, load * 100, 1, 1, 10)
    mean = sum(at_ms * weight for at_ms, weight in seen.ttft)
    assert mean == pytest.approx(10 + mean_wait_ms(10, load), rel=0.02)
    for wait in (5.0, 15.0, 35.0):
        share = sum(weight for at_ms, weight in seen.ttft if at_ms <= 10 + wait)
        assert share == pytest.approx(chance_of_waiting_at_most(wait, 10, load), abs=0.05)


def test_an_engine_that_falls_behind_is_refused():
    assert queue_times(lambda _, prompts: 10.0 * prompts, 101, 1, 1, 10) is None
    assert queue_times(lambda running, prompts: 1.0 + running + prompts, 100, 100, 4, 8) is None


@settings(max_examples=examples(30), deadline=None)
@given(
    st.floats(1, 30), st.floats(0, 0.3), st.floats(1, 80), st.integers(1, 8), st.integers(1, 300), st.floats(0.05, 0.9)
)  # fmt: skip
def test_more_requests_are_never_served_sooner(base, each, prefill, most, tokens, load):
    def step(running, prompts):
        return base + each * running + prefill * prompts

    rate = load * 1e3 / (prefill + base / most + (tokens - 1) * (each + base / 64))
    seen = queue_times(step, rate, tokens, most, 256)
    less = queue_times(step, rate / 2, tokens, most, 256)
    if seen is None:
        return
    assert less is not None
    assert sum(weight for _, weight in seen.ttft) == pytest.approx(1)
    assert seen.ttft_ms(0.5) <= seen.ttft_ms(0.99)
    assert seen.ttft[0][0] >= prefill
    for share in (0.5, 0.99):
        assert less.ttft_ms(share) <= seen.ttft_ms(share) * 1.05 + 0.5
    assert less.token_ms <= seen.token_ms + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.85])
def test_the_simulated_scheduler_agrees(load):
    """The queueing model agrees with the scheduler of the simulated engine.

    The prompts of this test are so long that a step of the engine can prefill at most 1.37 of them.
    ``python -m tests.bench.serve_queue`` compares model and scheduler for more engines and prompt lengths.
    """
    for _, measured, said in errors(CASES[1], (load,), 1_500):
        assert said.p50 == pytest.approx(measured.p50, rel=0.1)
        assert said.p99 == pytest.approx(measured.p99, rel=0.15)
        assert said.token_ms == pytest.approx(measured.token_ms, rel=0.1)


@given(st.floats(0.02, 300))
def test_a_step_takes_a_whole_number_of_parts_of_its_budget(most):
    parts = split(most)
    assert parts.step / parts.prompt == pytest.approx(most, rel=0.06)
    assert parts.step >= 1


def test_a_step_that_takes_a_prompt_and_a_half_keeps_up_with_more_than_one():
    def times(most):
        return queue_times(lambda _, prompts: 10.0 if prompts else 0.0, 120, 1, most, 10)

    assert times(1) is None
    seen = times(1.5)
    assert seen is not None
    assert seen.ttft_ms(0) == pytest.approx(10)


def test_a_prompt_of_three_steps_takes_three():
    seen = queue_times(lambda _, prompts: 30.0 * prompts, 0.01, 1, 1 / 3, 10)
    assert seen.ttft_ms(0.5) == pytest.approx(30)
    seen = queue_times(lambda running, prompts: 2.0 * (running > 0) + 30 * prompts, 10, 100, 1 / 3, 64)
    assert seen.ttft_ms(0.9) > 36


@pytest.mark.parametrize("tokens", [20, 200])
def test_answers_that_slow_each_other_down_run_as_the_exact_queue_has_them(tokens):
    """The plan's mean number of running answers equals the known mean of an M/G/1 queue with processor sharing.

    In this test, prompts take no time, and a step with n running answers takes n ms.
    """
    load = 0.6
    rate = load * 1e3 / (tokens - 1)
    seen = queue_times(lambda running, _: max(1.0, running), rate, tokens, 64, 256)
    assert seen.running == pytest.approx(load / (1 - load), rel=0.02)


def test_an_engine_with_few_places_is_full_before_it_is_busy():
    assert queue_times(lambda *_: 10.0, 1, 100, 4, 8) is not None  # one answer runs, on average
    assert queue_times(lambda *_: 10.0, 5, 100, 4, 8) is None  # five run, and eight do too often


def test_the_plan_keeps_the_promise_and_one_engine_less_does_not():
    kind = engine_kind(model("gemma-3-27b"), gpu("h100"), "fp8", Layout(), demand())
    plan = plan_serve(kind, demand(users=5_000))
    assert missed(plan.seen, demand(users=5_000)) is None
    assert plan.engines > 2
    fewer = queue_times(kind.step_ms, demand(users=5_000).rate / (plan.engines - 1), 200, kind.prompts, kind.capacity)
    assert missed(fewer, demand(users=5_000)) is not None


def test_the_rate_of_a_slow_engine_is_found_exactly():
    slow = demand(prompt=2_048, output=100_000, limits=Limits())
    kind = engine_kind(model("gemma-3-27b"), gpu("h100"), "fp8", Layout(), slow)
    rate = plan_serve(kind, slow).max_rate
    assert rate < 0.01
    more = queue_times(kind.step_ms, 1.003 * rate, slow.output, kind.prompts, kind.capacity)
    assert missed(more, slow) is not None


def measured(engine, **settings):
    return RunMeasurements(
        engine=engine, model="m", ready_s=1.0, settings=settings, machine={}, cells=(), streams=(), cut=False,
        wall_s=1.0, cpu_s=None, others_s=None, memory_mib=None, gpu_mib=None,
    )  # fmt: skip


def test_a_measured_engine_runs_as_many_answers_as_slots_and_memory_allow():
    about = {"target": model("gemma-3-27b"), "draft": None, "precision": "fp8", "gpu": gpu("h100"), "budget": 2_048}
    roofline, usual = FittedRoofline(**about), demand()
    assert measured_capacity(roofline, measured("vllm"), usual) == 64
    assert measured_capacity(roofline, measured("vllm", RAILBUS_VLLM_MAX_SEQS="16"), usual) == 16
    assert measured_capacity(roofline, measured("llama"), usual) == 4
    assert measured_capacity(roofline, measured("openai"), usual) == 256
    free = measured("vllm", RAILBUS_VLLM_MAX_SEQS="4096")
    fp8 = measured("vllm", RAILBUS_VLLM_MAX_SEQS="4096", RAILBUS_VLLM_KV_DTYPE="fp8")
    two = measured("vllm", RAILBUS_VLLM_MAX_SEQS="4096", RAILBUS_VLLM_TENSOR_PARALLEL="2")
    by_memory = measured_capacity(roofline, free, usual)
    assert 64 < by_memory < 200
    assert measured_capacity(roofline, fp8, usual) == pytest.approx(2 * by_memory, abs=1)
    assert measured_capacity(roofline, two, usual) > 2 * by_memory
    with pytest.raises(ValueError, match="leaves no room for an answer on 1 x h100"):
        measured_capacity(roofline, free, demand(prompt=1_000_000))


def test_the_slots_of_a_measured_engine_are_those_of_its_settings():
    defaults = {
        "simulated": SimulatedSettings().sim_batch,
        "llama": LlamaSettings().llama_slots,
        "vllm": VllmSettings().vllm_max_seqs,
    }
    assert {engine: usual for engine, (_, usual) in SLOTS.items()} == defaults


@pytest.mark.slow
def test_more_gpus_for_70b_serve_more_each_and_strict_limits_need_more():
    shape = model("llama-3-70b")
    rates = []
    for count in (2, 4, 8):
        plan = plan_serve(engine_kind(shape, gpu("h100"), "fp8", Layout(tensor=count), demand()), demand(users=20_000))
        assert plan.gpus == plan.engines * count
        rates.append(plan.max_rate)
    assert rates == sorted(rates)
    kind = engine_kind(shape, gpu("h100"), "fp8", Layout(tensor=4), demand())
    chat, voice = (plan_serve(kind, demand(users=20_000, limits=limits)) for limits in (READING, VOICE))
    assert chat.limit.startswith("a token each 50 ms")
    assert voice.limit.startswith("first token within 200 ms")


def test_what_cannot_be_promised_is_said(capsys):
    code, out, _ = told(capsys, "--gpu", "l4,h100", "--gpus", "1,2", "--users", "100")
    assert code == 0
    assert "not possible: gemma-3-27b in fp8 needs" in out
    assert "not possible: 2 x l4, fp8: a token each 50 ms is not met even by an idle engine" in out
    code, _, err = told(capsys, "--gpu", "l4", "--gpus", "1")
    assert code == 2
    assert "no engine keeps the promise" in err


@pytest.mark.slow
def test_answers_of_one_token_can_grow(capsys):
    code, out, _ = told(capsys, "--gpu", "h100", "--gpus", "1", "--output", "1", "--grow", "--json")
    assert code == 0
    assert all(row["chunks_per_second"] > 0 for row in json.loads(out)["growth"])


def test_growth_does_not_depend_on_how_often_users_ask(capsys):
    flags = ("--gpu", "h100", "--gpus", "1", "--grow", "--json")
    usual, often = (json.loads(told(capsys, *flags, *more)[1]) for more in ((), ("--users", "1", "--every", "0.0005")))
    assert often["growth"] == usual["growth"]


def test_the_plan_names_the_setting_that_its_engines_need(capsys):
    code, out, _ = told(capsys, "--gpu", "h100", "--gpus", "1", "--prompt", "4096")
    assert code == 0
    (most,) = re.findall(r"up to (\d+) answers run in each engine: set RAILBUS_VLLM_MAX_SEQS=\1 ", out)
    (engine,) = json.loads(told(capsys, "--gpu", "h100", "--gpus", "1", "--prompt", "4096", "--json")[1])["engines"]
    assert engine["max_seqs"] == engine["capacity"] == int(most) > 64


def test_growth_to_a_million_streams(capsys):
    code, out, _ = told(capsys, "--gpu", "h100", "--gpus", "2", "--model", "llama-3-70b", "--grow", "--json")
    found = json.loads(out)["growth"]
    assert code == 0
    assert [row["streams"] for row in found] == [1_000, 10_000, 100_000, 1_000_000]
    for name in ("gpus", "partitions", "cores"):
        assert [row[name] for row in found] == sorted(row[name] for row in found)
    last = found[-1]
    assert last["partitions"] * 2_500 >= last["chunks_per_second"]
    assert last["cells"] == last["partitions"] // 1_024
    assert last["brokers"] >= 3 * last["cells"]


@given(st.integers(1, 10**6), st.floats(5, 100))
def test_the_pipeline_has_room_for_every_chunk(streams, token_ms):
    needs = growth(streams, token_ms)
    assert needs.partitions & (needs.partitions - 1) == 0
    assert needs.partitions * 2_500 >= needs.chunks * (1 - 1e-9)
    assert needs.brokers >= 3
    assert needs.cores * 2_500 >= needs.chunks * (1 - 1e-9)


def test_streams_and_people_are_one_demand():
    kind = engine_kind(model("gemma-3-27b"), gpu("h100"), "fp8", Layout(), demand())
    full = plan_serve(kind, demand(users=100_000)).full
    more = plan_serve(kind, grown(demand(), 10_000, full))
    assert more.seen.running * more.engines == pytest.approx(10_000, rel=0.05)


@pytest.mark.slow
def test_the_report_marks_the_cheapest(capsys):
    code, out, _ = told(capsys, "--gpu", "h100,h200", "--gpus", "1,2", "--class", "voice")
    assert code == 0
    (chosen,) = re.findall(r"^\* (\d x \w+), fp8 +\d", out, re.MULTILINE)
    found = json.loads(told(capsys, "--gpu", "h100,h200", "--gpus", "1,2", "--class", "voice", "--json")[1])
    assert found["cheapest"] == f"{chosen}, fp8"
    assert min(row["per_hour"] for row in found["engines"]) == next(
        row["per_hour"] for row in found["engines"] if row["engine"] == found["cheapest"]
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--users", "0"), "users must be a whole number"),
        (("--every", "0"), "every (seconds) must be a number above 0"),
        (("--users", "9" * 400), "users must be at most"),
        (("--every", "1e-308"), "inf requests a second"),
        (("--every", "1e308", "--grow"), "every (seconds) must be at most"),
        (("--prompt", "9" * 30), "prompt must be at most 1,000,000,000"),
        (("--ttft-ms", "-1"), "--ttft-ms must be a number above 0"),
        (("--gpus", "0"), "give whole numbers within 1 and 64"),
        (("--cached", "512"), "cached must be below"),
        (("--calibrate", "nowhere.json"), "cannot be read"),
    ],
)
def test_a_mistake_gets_one_sentence(capsys, flags, sentence):
    code, _, err = told(capsys, *flags)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_class_of_the_policy_gives_the_limits(capsys, tmp_path):
    (tmp_path / "policy.toml").write_text("[classes.slow.slo]\nfirst_token = { ms = 5000 }\n[classes.free]\n")
    policy = ("--policy", str(tmp_path), "--model", "gemma-3-4b", "--gpu", "h100", "--gpus", "1", "--json")
    code, out, _ = told(capsys, "--class", "slow", *policy)
    assert code == 0
    asked = json.loads(out)["demand"]
    assert (asked["ttft_ms"], asked["token_ms"], asked["total_ms"]) == (5_000, None, None)
    code, _, said = told(capsys, "--class", "gold", *policy)
    assert (code, "the classes of this policy are batch, chat, free, slow, voice" in said) == (2, True)
    code, _, said = told(capsys, "--class", "free", *policy)
    assert (code, "has no objectives: add [classes.free.slo]" in said) == (2, True)
