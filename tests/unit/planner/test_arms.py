"""Test which arms ``railbus bench engine`` has, their order, and which GPU and models its result file names."""

import pytest

from services.cli.bench.arms import PLAIN, abba_order, build_arms, catalogue_entry, require_drafting
from services.cli.commands.bench import _env, _numbers
from services.runtime.errors import UserError

NO_FLAGS = dict.fromkeys(("gpu", "target", "draft", "precision", "budget"))


def test_arms_differ_in_their_switch_alone():
    plain, four, eight = build_arms("simulated", (4, 8), {}, {})
    assert (plain.name, plain.gamma, plain.env) == (PLAIN, 0, {"RAILBUS_SIM_GAMMA": "0"})
    assert (four.name, four.env) == ("gamma-4", {"RAILBUS_SIM_GAMMA": "4"})
    assert (eight.name, eight.gamma) == ("gamma-8", 8)
    assert [arm.env for arm in build_arms("llama", (8,), {}, {})] == [
        {"RAILBUS_LLAMA_SPECULATION": "off"},
        {"RAILBUS_LLAMA_SPECULATION": "ngram"},
    ]


def test_a_b_b_a():
    both = build_arms("simulated", (4,), {}, {})
    assert [arm.gamma for arm in abba_order(both, 1)] == [0, 4, 4, 0]
    assert [arm.gamma for arm in abba_order(both, 2)] == [0, 4, 4, 0, 0, 4, 4, 0]


def test_vllm_drafts_with_a_model_or_a_method():
    require_drafting("simulated", {})
    require_drafting("vllm", {"RAILBUS_VLLM_DRAFT": "folder"})
    require_drafting("vllm", {"RAILBUS_VLLM_METHOD": "ngram"})
    plain, drafting = build_arms("vllm", (4,), {}, {})
    assert plain.env == {"RAILBUS_VLLM_METHOD": "off", "RAILBUS_VLLM_DRAFT": ""}  # a draft nobody asks is refused
    assert drafting.env == {"RAILBUS_VLLM_SPECULATIVE_TOKENS": "4"}


def test_any_engine_by_its_own_settings():
    url = {"RAILBUS_UPSTREAM_URL": "http://127.0.0.1:8001"}
    assert [arm.env for arm in build_arms("openai", (4,), {}, url)] == [{}, url]
    two = build_arms("other", (2, 4), {"RAILBUS_N": "0"}, {"RAILBUS_N": "{gamma}"})
    assert [arm.env["RAILBUS_N"] for arm in two] == ["0", "2", "4"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_arms("openai", (4,), {}, {}), "the settings that make engine openai draft are unknown"),
        (lambda: build_arms("llama", (2, 4), {}, {}), "give one --gammas"),
        (lambda: build_arms("simulated", (4,), {"RAILBUS_A": "1"}, {"RAILBUS_A": "1"}), "are unknown"),
        (lambda: _numbers("--batches", "1,x", 1, 9), "--batches '1,x': give different whole numbers within 1 and 9"),
        (lambda: _numbers("--batches", "1,1", 1, 9), "different"),
        (lambda: _numbers("--batches", "10", 1, 9), "within 1 and 9"),
        (lambda: require_drafting("vllm", {"RAILBUS_VLLM_METHOD": "auto"}), "nothing to draft with"),
        (
            lambda: catalogue_entry("vllm", {}, NO_FLAGS | {"gpu": "h100", "target": "gemma-3-27b"}),
            "--gpu is for the prediction, which also needs --draft, --precision, --budget: give all, or none",
        ),
        (lambda: _env(["PATH=/"]), "give a setting as RAILBUS_NAME=VALUE"),
        (lambda: _env(["RAILBUS_X"]), "give a setting as RAILBUS_NAME=VALUE"),
    ],
)
def test_nonsense_is_refused(call, message):
    with pytest.raises(UserError) as refused:
        call()
    assert message in str(refused.value)


def test_what_is_predicted():
    usual = catalogue_entry("simulated", {"RAILBUS_SIM_GPU": "h200"}, NO_FLAGS)
    assert usual == {
        "gpu": "h200", "target": "gemma-3-27b", "draft": "gemma-3-4b", "precision": "fp8", "budget": "2048",
    }  # fmt: skip
    assert catalogue_entry("llama", {}, NO_FLAGS | {"target": "mine/config.json"})["target"] == "mine/config.json"
    assert catalogue_entry("openai", {}, NO_FLAGS) == {}
    assert _numbers("--batches", "", 1, 9) == ()


def test_another_file_of_the_model_has_no_default_target_or_precision():
    env = {"RAILBUS_MODEL_PATH": "other.gguf", "RAILBUS_LLAMA_BATCH": "512"}
    assert catalogue_entry("llama", env, NO_FLAGS) == {}
    given = NO_FLAGS | {"target": "other/config.json", "precision": "bf16"}
    found = catalogue_entry("llama", env, given)
    assert (found["target"], found["precision"], found["budget"]) == ("other/config.json", "bf16", "512")
    assert catalogue_entry("llama", {}, NO_FLAGS)["budget"] == "128"
    with pytest.raises(UserError, match="also needs --precision"):
        catalogue_entry("llama", env, given | {"precision": None})
