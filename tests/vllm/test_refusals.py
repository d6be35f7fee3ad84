"""Test that a generator that cannot start says why in one sentence, is never ready, and exits with code 2."""

import shutil
import subprocess
import sys

import pytest

from services.generator.engines import make
from services.runtime.errors import UserError
from tests.support.processes import ROOT, bare_environment

PATIENCE_S = 240


def test_a_gpu_that_is_not_there(models, settings, tmp_path):
    env = settings | {"RAILBUS_MODEL_PATH": str(models["target"]), "RAILBUS_VLLM_DEVICE": "gpu"}
    ended = run_generator(env)
    assert ended.returncode == 2
    assert not ended.stdout
    (line,) = own_lines(ended.stderr)
    assert line.startswith("railbus generator: engine vllm: no GPU (this vLLM is built for the CPU)")


def test_a_context_that_no_memory_holds(models, settings):
    env = settings | {"RAILBUS_MODEL_PATH": str(models["target"]), "RAILBUS_VLLM_KV_GIB": "0.0002"}
    ended = run_generator(env)
    assert ended.returncode == 2
    assert not ended.stdout
    (line,) = own_lines(ended.stderr)
    assert "not enough memory" in line
    assert "RAILBUS_VLLM_MAX_LEN" in line
    assert "RAILBUS_VLLM_KV_GIB" in line


async def test_more_memory_than_there_is(models, settings):
    env = settings | {"RAILBUS_MODEL_PATH": str(models["target"]), "RAILBUS_VLLM_KV_GIB": "9000"}
    await refused(env, r"not enough memory: the machine has no 9000.* set RAILBUS_VLLM_KV_GIB lower")


async def test_an_architecture_that_vllm_does_not_know(models, settings, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(models["target"], folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("Gemma3ForCausalLM", "AbacusForCausalLM"))
    await refused(settings | {"RAILBUS_MODEL_PATH": str(folder)}, "does not support the architecture AbacusForCausalLM")


async def test_a_context_longer_than_the_models(models, settings):
    env = settings | {"RAILBUS_MODEL_PATH": str(models["target"]), "RAILBUS_VLLM_MAX_LEN": "9999"}
    await refused(env, "RAILBUS_VLLM_MAX_LEN=9999: the model supports at most 1024 tokens")


@pytest.mark.core
async def test_a_drafter_with_other_words(models, settings):
    env = {"RAILBUS_MODEL_PATH": str(models["target"]), "RAILBUS_VLLM_DRAFT": str(models["small"])}
    await refused(settings | env, "RAILBUS_VLLM_DRAFT: the drafter's vocabulary differs")


@pytest.mark.core
async def test_a_base_model(models, settings):
    await refused(settings | {"RAILBUS_MODEL_PATH": str(models["base"])}, "base has no chat template")


async def refused(env, match):
    engine = make("vllm", env)
    try:
        with pytest.raises(UserError, match=match) as caught:
            await engine.start()
        assert "\n" not in str(caught.value)
        print(caught.value)
    finally:
        await engine.close()


def run_generator(env):
    """Run a generator until it exits.

    No broker is needed, because the engine starts, and fails, while the generator still tries to reach the broker.
    """
    return subprocess.run(
        [sys.executable, "-m", "services.generator"],
        cwd=ROOT, env=bare_environment() | env | {"RAILBUS_ENGINE": "vllm", "RAILBUS_KAFKA_BOOTSTRAP": "127.0.0.1:1"},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def own_lines(stderr):
    print(stderr)
    return [line for line in stderr.splitlines() if line.startswith("railbus generator:")]
