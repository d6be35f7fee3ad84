"""Test that the files in `infra/profiles` set valid values, and that their comments state the predicted times.

The formulas of `services/physics` predict these times.
"""

import re
from pathlib import Path

import pytest

from schemas.requests import Deadlines
from services.generator.engines.vllm.arguments import engine_arguments
from services.generator.engines.vllm.settings import VllmSettings
from services.generator.settings import GeneratorSettings
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.deadlines import highest_utilisation
from services.physics.efficiency import practical
from services.physics.parallel import Layout, communication_ms, group
from services.physics.roofline import decode_ms, kv_bytes_per_token, prefill_ms, require_fit, weight_bytes
from services.physics.speculation import speedup
from services.router.settings import Settings as RouterSettings
from services.runtime.settings import load_settings, settings_variables
from tests.support.compose_file import load, read_env_file, references

FOLDER = Path(__file__).parents[3] / "infra" / "profiles"
PROFILES = sorted(FOLDER.glob("*.env"))
GPU_PROFILES = [path for path in PROFILES if path.stem != "cpu-test"]
KNOWN = {each.name for cls in (VllmSettings, GeneratorSettings, RouterSettings) for each in settings_variables(cls)}
COMPOSE_ONLY = {"RAILBUS_CPU_GENERATORS", "RAILBUS_GENERATOR_MEMORY"}

CHARS_PER_TOKEN = 4
RESERVED_BYTES = 9.3e9
"""Part of vLLM's memory, in bytes per GPU, that a profile leaves for activations, CUDA graphs and NCCL."""
AROUND_MS = 6
"""Part of the deadline that edge and bus take, in milliseconds, as in `railbus plan latency`."""
LIKELY, HOPED_FOR = 0.7, 0.8
"""Acceptance rates of drafted tokens."""


def test_the_readme_lists_every_profile():
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(PROFILES) == 6
    assert all(f"`{path.name}`" in told for path in PROFILES)


def test_what_only_compose_reads_is_read_there():
    assert references(load()) >= COMPOSE_ONLY


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_can_be_loaded(path):
    env = read_env_file(path)
    assert env.keys() <= KNOWN | COMPOSE_ONLY
    settings = load_settings(VllmSettings, env | {"RAILBUS_VLLM_DRAFT": "draft"})
    found = engine_arguments(settings, Path("target"), gemma_drafts_gemma=True)
    assert found["disable_hybrid_kv_cache_manager"] is True
    schedule = settings.schedule()
    assert schedule is None or schedule[-1][1] == settings.vllm_max_seqs
    assert load_settings(GeneratorSettings, env).engine == "vllm"
    load_settings(RouterSettings, env)


class ProfileEstimate:
    """A profile's settings, and the times and memory that the formulas of ``services/physics`` predict for them."""

    def __init__(self, path):
        self.env, self.text = read_env_file(path), path.read_text(encoding="utf-8")
        self.settings = load_settings(VllmSettings, self.env)
        self.layout = Layout(tensor=self.settings.vllm_tensor_parallel)
        name = {"a100": "a100-80"}.get(short := re.match(r"[a-z]+\d+", path.stem)[0], short)
        self.one, self.gpu = gpu(name), group(gpu(name), self.layout)
        self.precision = "fp8" if self.settings.vllm_quantization == "fp8" else "bf16"
        self.efficiency = practical(self.one)
        self.target, self.draft = model("gemma-3-27b"), model("gemma-3-4b")

    def prefill_ms(self, tokens):
        """Return the time to prefill ``tokens`` tokens. A step processes at most ``vllm_batched_tokens`` of them."""
        took, part = 0.0, self.settings.vllm_batched_tokens
        for done in range(0, tokens, part):
            new = min(part, tokens - done)
            took += prefill_ms(self.target, self.gpu, self.precision, new, cached=done, efficiency=self.efficiency)
            took += communication_ms(self.target, self.one, self.layout, new)
        return took

    def step_ms(self, model):
        step = decode_ms(model, self.gpu, self.precision, batch=1, context=512, efficiency=self.efficiency)
        return step + communication_ms(model, self.one, self.layout, 1)

    def deadline_ms(self, tokens):
        """Return the router's default deadline, in ms, for the first token after a prompt of ``tokens`` tokens."""
        config = load_settings(RouterSettings, self.env).config()
        return config.ttft_us(config.narrow(Deadlines()), tokens * CHARS_PER_TOKEN) / 1e3

    def room(self):
        """Return how many tokens fit into the KV cache."""
        weights = weight_bytes(self.target, self.precision) + weight_bytes(self.draft, self.precision)
        free = self.gpu.memory_bytes * self.settings.vllm_memory - weights - RESERVED_BYTES * self.layout.tensor
        return free / (kv_bytes_per_token(self.target) + kv_bytes_per_token(self.draft))

    def gain(self, gamma, alpha=LIKELY):
        return speedup(alpha, gamma, self.step_ms(self.draft) / self.step_ms(self.target))

    def said(self, pattern):
        """Return the numbers that the groups of ``pattern`` match in the profile's comments."""
        found = re.search(pattern, self.text.replace("\n# ", " "))
        assert found is not None, pattern
        return [float(each.replace(",", "")) for each in found.groups()]


@pytest.fixture(params=GPU_PROFILES, ids=lambda path: path.stem)
def machine(request):
    return ProfileEstimate(request.param)


def test_the_comment_says_what_the_law_says(machine):
    assert machine.said(r"idle engine: (\d+) / (\d+) / (\d+) ms for prompts of 512 / 1,024 / 2,048") == pytest.approx(
        [machine.prefill_ms(tokens) for tokens in (512, 1_024, 2_048)], abs=1
    )
    deadline, load_percent = machine.said(r"keep the deadline of ([\d,]+) ms up to a load of (\d+) %")
    assert deadline == pytest.approx(machine.deadline_ms(512), abs=1)
    share = highest_utilisation(machine.deadline_ms(512) - AROUND_MS, machine.prefill_ms(512))
    assert load_percent == pytest.approx(share * 100, abs=1)
    assert machine.said(r"A step takes ([\d.]+) ms alone, a draft step ([\d.]+);") == pytest.approx(
        [machine.step_ms(machine.target), machine.step_ms(machine.draft)], abs=0.06
    )
    assert machine.said(r"room for about ([\d,]+) tokens") == pytest.approx([machine.room()], rel=0.02)


def test_weights_and_the_answers_of_a_full_batch_fit(machine):
    require_fit(machine.target, machine.gpu, machine.precision)
    seats, tokens = machine.said(r"(\d+) answers of ([\d,]+) tokens fit")
    assert seats == machine.settings.vllm_max_seqs
    assert seats * tokens <= machine.room() * 1.02
    assert machine.settings.vllm_max_len <= machine.room()


def test_the_first_token_of_usual_prompts_keeps_its_deadline_under_load(machine):
    """At 60 % load, 99 % of prompts of 512 tokens get their first token within the deadline.

    On an idle engine, a prompt of 2,048 tokens gets its first token within the deadline.
    """
    assert highest_utilisation(machine.deadline_ms(512) - AROUND_MS, machine.prefill_ms(512)) >= 0.6
    assert machine.prefill_ms(2_048) <= machine.deadline_ms(2_048) - AROUND_MS


def test_the_profiles_draft_length_is_within_a_percent_of_the_best(machine):
    gains = {gamma: machine.gain(gamma) for gamma in range(1, 9)}
    assert gains[machine.settings.vllm_speculative_tokens] >= 0.99 * max(gains.values())


def test_the_gain_of_drafting_is_the_one_that_the_comment_gives(machine):
    gamma = machine.settings.vllm_speculative_tokens
    for gain in re.findall(r"acceptance of \.7[^.]*?(1\.\d\d)x", machine.text):
        assert float(gain) == pytest.approx(machine.gain(gamma), abs=0.01)
    for gain in re.findall(r"at \.8 (1\.\d\d)x", machine.text):
        assert float(gain) == pytest.approx(machine.gain(gamma, HOPED_FOR), abs=0.01)
