"""Test how the settings of the engine ``vllm`` become vLLM's arguments. The tests do not need vLLM."""

import json
from pathlib import Path

import pytest

from services.generator.engines import make
from services.generator.engines.vllm.arguments import engine_arguments, engine_environment, fixed_draft_length
from services.generator.engines.vllm.settings import VllmSettings
from services.runtime.errors import UserError

TARGET = Path("target")


def made(**settings):
    return engine_arguments(VllmSettings(**settings), TARGET, gemma_drafts_gemma=False)


def test_what_is_left_to_vllm_is_left_out():
    found = made()
    assert found["model"] == "target"
    assert found["scheduling_policy"] == "priority"
    assert found["enable_prefix_caching"] is True
    left_out = {"quantization", "max_model_len", "kv_cache_memory_bytes", "block_size", "speculative_config"}
    assert not left_out & found.keys()
    assert "per_request_spec_decode_metrics" not in found, "vLLM refuses it when nothing drafts"


def test_the_optimisation_level_is_a_number_and_0_is_one():
    assert "optimization_level" not in made()
    assert made(vllm_optimization="0")["optimization_level"] == 0
    assert made(vllm_optimization="3")["optimization_level"] == 3


def test_the_cpu_builds_threads_are_bound_unless_the_operator_did():
    assert "VLLM_CPU_OMP_THREADS_BIND" not in engine_environment(VllmSettings(), {})
    bound = VllmSettings(vllm_cpu_cores="0-1")
    assert engine_environment(bound, {})["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in engine_environment(bound, {"VLLM_CPU_OMP_THREADS_BIND": "0"})


def test_a_draft_model_is_quantised_by_its_own_setting():
    found = made(vllm_draft=Path("draft"), vllm_quantization="fp8", vllm_draft_quantization="fp8")
    assert found["quantization"] == "fp8"
    assert found["per_request_spec_decode_metrics"] == "summary"
    assert found["speculative_config"] == {
        "method": "draft_model", "num_speculative_tokens": 4, "model": "draft", "quantization": "fp8",
        "draft_sample_method": "greedy", "draft_tensor_parallel_size": 1,
    }  # fmt: skip


def test_other_methods():
    assert made(vllm_method="ngram")["speculative_config"] == {
        "method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4,
    }  # fmt: skip
    assert made(vllm_method="mtp", vllm_speculative_tokens=2)["speculative_config"] == {
        "method": "mtp", "num_speculative_tokens": 2,
    }  # fmt: skip
    eagle = made(vllm_method="eagle3", vllm_draft=Path("head"))["speculative_config"]
    assert (eagle["method"], eagle["model"]) == ("eagle3", "head")


def test_gamma_by_batch():
    settings = VllmSettings(vllm_draft=Path("d"), vllm_speculative_tokens_by_batch="1-8:5, 9-32:3 33-256:0")
    found = engine_arguments(settings, TARGET, gemma_drafts_gemma=False)["speculative_config"]
    assert found["num_speculative_tokens"] == 5
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 8, 5], [9, 32, 3], [33, 256, 0]]
    assert fixed_draft_length(settings) == 0
    assert fixed_draft_length(VllmSettings(vllm_draft=Path("d"))) == 4
    assert fixed_draft_length(VllmSettings(vllm_method="ngram")) == fixed_draft_length(VllmSettings()) == 0


@pytest.mark.parametrize("text", ["5", "2-8:5", "1-8:5 10-12:3", "1-8:5 9-4:3", "1-8:17", "1-8:-1", "eight", ","])
def test_ranges_that_are_none(text):
    with pytest.raises(UserError, match="RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH"):
        made(vllm_draft=Path("d"), vllm_speculative_tokens_by_batch=text)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"vllm_method": "draft_model"}, "needs RAILBUS_VLLM_DRAFT"),
        ({"vllm_method": "eagle3"}, "needs RAILBUS_VLLM_DRAFT"),
        ({"vllm_method": "ngram", "vllm_draft": Path("d")}, "does not use RAILBUS_VLLM_DRAFT"),
        ({"vllm_method": "off", "vllm_draft": Path("d")}, "does not use RAILBUS_VLLM_DRAFT"),
        ({"vllm_speculative_tokens_by_batch": "1-8:5"}, "speculation is off"),
        ({"vllm_method": "ngram", "vllm_speculative_tokens_by_batch": "1-8:0"}, "never drafts"),
    ],
)
def test_settings_that_contradict_each_other(settings, match):
    with pytest.raises(UserError, match=match):
        made(**settings)


def test_a_gemma_that_drafts_needs_one_kind_of_cache():
    def grouped(**settings):
        found = engine_arguments(VllmSettings(**settings), TARGET, gemma_drafts_gemma=True)
        return "disable_hybrid_kv_cache_manager" not in found

    assert not grouped()
    assert grouped(vllm_hybrid_kv="on")
    assert "disable_hybrid_kv_cache_manager" not in made()
    assert made(vllm_hybrid_kv="off")["disable_hybrid_kv_cache_manager"]


def test_the_operators_own_variables_stay():
    found = engine_environment(VllmSettings(vllm_runner="v1"), {"HF_HUB_OFFLINE": "0"})
    assert found["VLLM_NO_USAGE_STATS"] == "1"
    assert found["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    assert "HF_HUB_OFFLINE" not in found
    assert "VLLM_USE_V2_MODEL_RUNNER" not in engine_environment(VllmSettings(), {})


def folder(tmp_path, **files):
    path = tmp_path / "model"
    path.mkdir()
    for name, content in files.items():
        (path / name.replace("__", ".").replace("_", "-")).write_text(content)
    return path


CONFIG = json.dumps({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"})


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (None, "no such folder"),
        ({}, "has no config.json"),
        ({"config__json": "{"}, "cannot be read"),
        ({"config__json": "{}"}, "names no architecture"),
        ({"config__json": CONFIG}, r"no weights \(\*\.safetensors\)"),
    ],
)
def test_missing_files_are_named_before_anything_is_loaded(files, match, tmp_path):
    path = tmp_path / "away" if files is None else folder(tmp_path, **files)
    with pytest.raises(UserError, match=match) as caught:
        make("vllm", {"RAILBUS_MODEL_PATH": str(path)})
    assert str(caught.value).startswith(f"RAILBUS_MODEL_PATH='{path}'")


def test_a_missing_shard_is_named(tmp_path):
    path = folder(tmp_path, config__json=CONFIG)
    (path / "model-00001-of-00002.safetensors").write_bytes(b"")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"1 of 2 weight files are missing, the first is model-00002-of-00002"):
        make("vllm", {"RAILBUS_MODEL_PATH": str(path)})


def test_model_files_that_are_not_utf_8_are_named(tmp_path):
    path = folder(tmp_path, config__json=CONFIG)
    (path / "model.safetensors").write_bytes(b"")
    index = path / "model.safetensors.index.json"
    index.write_bytes(b'{"weight_map": {"a": "\xff"}}')
    with pytest.raises(UserError, match=r"its model\.safetensors\.index\.json cannot be read"):
        make("vllm", {"RAILBUS_MODEL_PATH": str(path)})
    (path / "config.json").write_bytes(b'{"architectures": ["\xff"]}')
    with pytest.raises(UserError, match=r"its config\.json cannot be read"):
        make("vllm", {"RAILBUS_MODEL_PATH": str(path)})


def test_the_drafters_files_count_too_and_dummy_weights_need_none(tmp_path):
    path = folder(tmp_path, config__json=CONFIG)
    env = {"RAILBUS_MODEL_PATH": str(path), "RAILBUS_VLLM_LOAD_FORMAT": "dummy"}
    engine = make("vllm", env)
    assert (engine.model, engine.capacity, engine.stats().running) == ("model", 64, 0)
    with pytest.raises(UserError, match="RAILBUS_VLLM_DRAFT='nowhere': there is no such folder"):
        make("vllm", env | {"RAILBUS_VLLM_DRAFT": "nowhere"})
    with pytest.raises(UserError, match="needs RAILBUS_MODEL_PATH"):
        make("vllm", {})
