"""Test that the latency plan adds up and agrees with the formulas, and that an error names the invalid input."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.physics.catalogue.gpus import GPUS, gpu
from services.physics.catalogue.models import MODELS, model
from services.planner.__main__ import main
from services.planner.latency.plan import plan_latency
from services.planner.latency.plan_input import PlanInput, SurroundingLatency
from services.planner.latency.report import as_json, lines
from tests.support.examples import examples

BIG, SMALL, H100 = model("gemma-3-27b"), model("gemma-3-4b"), gpu("h100")


def ask(**changes):
    return PlanInput(**{"gpu": H100, "target": BIG, "draft": SMALL, **changes})


def told(capsys, *flags):
    code = main(["latency", *flags])
    said = capsys.readouterr()
    return code, said.out, said.err


@settings(max_examples=examples(15), deadline=None)
@given(
    st.floats(0, 1), st.integers(1, 8_000), st.integers(1, 500), st.integers(1, 32), st.floats(0, 0.95),
    st.floats(0, 500), st.floats(0, 2_000),
)  # fmt: skip
def test_the_budget_adds_up(alpha, prompt, output, batch, utilisation, rails, ttft):
    question = ask(
        alpha=alpha, prompt=prompt, output=output, batch=batch, utilisation=utilisation, ttft_ms=ttft,
        around=SurroundingLatency(rails=rails),
    )  # fmt: skip
    answer = plan_latency(question)
    for part in answer.parts:
        assert 0 <= part.floor <= part.practical + 1e-9
        assert part.drafted <= part.practical + 1e-9
    for column in ("floor", "practical", "drafted"):
        assert answer.total(column, first=True) <= answer.total(column, first=False)
    assert answer.total("practical", first=True) == answer.total("drafted", first=True)
    assert answer.speedup >= 1
    governance = answer.governance
    assert governance.seen_ms + governance.hidden * rails == pytest.approx(rails)
    assert answer.deadline.longest <= answer.deadline.longest_floor
    assert all(isinstance(line, str) for line in lines(question, answer))


def test_the_usual_question():
    answer = plan_latency(ask())
    prefill, decode = (
        next(part for part in answer.parts if part.name.endswith(name)) for name in ("prefill", "decode")
    )
    assert prefill.floor == pytest.approx(13, abs=0.5)
    assert prefill.practical == pytest.approx(33.3, rel=0.02)
    assert decode.floor / 49 == pytest.approx(8.6, rel=0.02)
    assert (answer.gamma, round(answer.speedup, 2)) == (3, 1.53)
    assert answer.draft_cost == pytest.approx(0.29, rel=0.03)
    assert answer.verify_cost > 1
    chosen = {(choice.alpha, round(choice.draft_cost, 2)): choice for choice in answer.choices}
    for alpha, cost, gamma, speed in (
        (0.6, 0.29, 2, 1.21), (0.7, 0.29, 2, 1.35), (0.8, 0.29, 3, 1.54), (0.9, 0.29, 5, 1.88),
        (0.6, 0.37, 1, 1.12), (0.7, 0.37, 2, 1.22), (0.8, 0.37, 3, 1.36), (0.9, 0.37, 4, 1.61),
    ):  # fmt: skip
        assert chosen[alpha, cost].gamma == gamma
        assert chosen[alpha, cost].speedup == pytest.approx(speed, rel=0.02)
    assert answer.governance.paid


def test_a_deadline_of_200_ms():
    nothing = SurroundingLatency(network=20, pre=0, post=0, response=0)
    assert plan_latency(ask(around=nothing)).deadline.longest == pytest.approx(4_260, rel=0.02)
    assert plan_latency(ask(around=nothing, precision="bf16", draft=None)).deadline.longest == pytest.approx(
        2_272, rel=0.02
    )
    assert plan_latency(ask(ttft_ms=30)).deadline.utilisation == 0


def test_the_deadline_counts_from_receipt_as_the_routers_does():
    """The deadline counts from when the edge receives the request, as in the router (``ttft_due_us``).

    So the time in the client's network does not change the deadline.
    """
    near, far = (plan_latency(ask(around=SurroundingLatency(network=network))) for network in (0, 150))
    assert near.deadline == far.deadline
    assert near.deadline.prefill_ms == 200 - 3 - 1 - 2
    assert far.total("practical", first=True) - near.total("practical", first=True) == pytest.approx(150)


def test_rails_that_are_too_slow_are_not_paid_for_by_speculation():
    governance = plan_latency(ask(around=SurroundingLatency(rails=189))).governance
    assert governance.hidden == pytest.approx(0.176, abs=0.01)
    assert not governance.paid
    assert governance.returned_ms > governance.seen_ms
    assert plan_latency(ask(around=SurroundingLatency(rails=189), prompt=governance.hidden_from)).governance.paid
    assert not plan_latency(
        ask(around=SurroundingLatency(rails=189), prompt=governance.hidden_from - 1)
    ).governance.paid


def test_without_a_draft_nothing_is_drafted(capsys):
    code, out, _ = told(capsys, "--draft", "none")
    assert code == 0
    assert "speculation" not in out
    assert "no draft" in out


def test_at_a_batch_the_prompts_of_others_delay_the_answer():
    def others(batch):
        parts = plan_latency(ask(draft=None, batch=batch, prompt=2_000)).parts
        return next(part for part in parts if part.name == "others' prefill").practical

    assert others(1) == 0
    assert 0 < others(4) < others(16)


def test_an_engine_and_a_kv_cache_are_chosen(capsys):
    def last(*flags):
        code, out, _ = told(capsys, "--draft", "none", "--batch", "32", "--prompt", "1000", "--json", *flags)
        assert code == 0
        return json.loads(out)

    usual, small, static = last(), last("--kv", "fp8"), last("--engine", "tensorrt-llm")
    assert small["memory_gib"] < usual["memory_gib"]
    for other in (small, static):
        assert other["plan"]["last_token_ms"]["practical"] < usual["plan"]["last_token_ms"]["practical"]


def test_a_busy_engine_is_not_steady(capsys):
    assert "vary" not in told(capsys)[1]
    assert "vary by 51% of their mean" in told(capsys, "--utilisation", "0.5")[1]


def test_the_json_has_the_input_and_the_plan(capsys):
    code, out, _ = told(capsys, "--json", "--alpha", "0.7")
    answer = json.loads(out)
    assert code == 0
    assert answer["question"]["gpu"] == "h100"
    assert answer["plan"]["gamma"] == 2
    assert answer["governance_paid"] is True
    assert answer["plan"]["last_token_ms"]["practical"] > answer["plan"]["last_token_ms"]["drafted"]


def test_a_model_from_its_configuration(capsys, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    }  # fmt: skip
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    outs = []
    for target in ("llama-3-8b", str(folder), str(folder / "config.json")):
        code, out, _ = told(capsys, "--target", target, "--draft", "none")
        assert code == 0
        outs.append(re.sub(r"^\S+", "", out))
    assert len(set(outs)) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--alpha", "1.2"), "alpha must be between 0 and 1, not 1.2"),
        (("--alpha", "nan"), "alpha must be between 0 and 1"),
        (("--gpu", "h900"), f"GPU 'h900' is not in the catalogue; it has {', '.join(GPUS)}"),
        (("--target", "gpt-9"), f"model 'gpt-9' is not in the catalogue; it has {', '.join(MODELS)}"),
        (("--target", "no/such"), "no/such: there is no such file or folder"),
        (("--target", "nothing.json"), "nothing.json: cannot be read"),
        (("--target", "llama-3-70b", "--gpu", "a100-40"), "needs 72.1 GiB .* a100-40 has 40 GiB"),
        (("--batch", "4000"), "h100 has 80 GiB"),
        (("--batch", "0"), "batch must be a whole number of at least 1"),
        (("--prompt", "-3"), "prompt must be a whole number of at least 1, not -3"),
        (("--prompt", "2000000"), "prompt must be at most 1000000"),
        (("--cached", "512"), "cached must be below the prompt's 512 tokens"),
        (("--output", "-1"), "output must be a whole number"),
        (("--utilisation", "1"), "utilisation must be at least 0 and below 1"),
        (("--target", "gemma-3-4b", "--draft", "gemma-3-27b"), "a draft must be smaller"),
        (("--rails-ms", "-1"), "rails .* must be a number of at least 0"),
        (("--network-ms", "inf"), "network .* must be a number"),
        (("--rails-ms", "1e308", "--json"), "rails .* must be at most 1e.09"),
        (("--ttft-ms", "1e308", "--json"), "ttft .* must be at most 1e.09"),
        (("--plot", "plan.pdf"), "the file must end in .png or .svg"),
    ],
)
def test_nonsense_is_refused_without_a_traceback(capsys, flags, message):
    code, out, err = told(capsys, *flags)
    assert code == 2
    assert out == ""
    assert err.startswith("railbus plan: ")
    assert err.count("\n") == 1
    assert re.search(message, err)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "model_type"),
        (
            '{"model_type": "llama", "num_hidden_layers": 1' + "0" * 400 + "}",
            "config.json needs num_hidden_layers of at most 1,000,000,000",
        ),
    ],
)
def test_a_configuration_that_is_none(capsys, tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_text(content)
    code, _, err = told(capsys, "--target", str(path))
    assert code == 2
    assert message in err


def test_the_longest_deadline_has_a_longest_prompt(capsys):
    code, out, _ = told(capsys, "--target", "gemma-3-270m", "--draft", "none", "--gpu", "b200", "--ttft-ms", "1e9")
    assert code == 0
    assert re.search(r"prompts of up to \d+ uncached tokens on an idle engine \(at the floor: 8\d{8}\)", out)


def test_the_cost_of_an_idle_loaded_draft_is_reported():
    resting = ask(gpu=gpu("a100-80"), precision="bf16", alpha=0.6)
    answer = plan_latency(resting)
    last = answer.bands[-1]
    assert (len(answer.bands), last.gamma) == (3, 0)
    assert answer.idle_cost == pytest.approx(resting.pair.draft_cost(batch=last.first, context=resting.context))
    assert any("still runs in each step and costs 26% of it" in line for line in lines(resting, answer))
    assert plan_latency(ask(alpha=0.8)).idle_cost is None


def test_a_draft_that_never_pays_is_left_off_in_words_the_engine_takes():
    never = ask(alpha=0.1)
    said = "\n".join(lines(never, plan_latency(never)))
    assert "  RAILBUS_VLLM_METHOD=off" in said
    assert "BY_BATCH" not in said
    assert plan_latency(never).idle_cost is None
    assert as_json(never, plan_latency(never))["profile"] == ""
    assert as_json(ask(), plan_latency(ask()))["profile"].startswith("1-20:3 21-")
