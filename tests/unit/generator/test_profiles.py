"""`infra/profiles` holds settings that exist, with values that are allowed, each with a comment."""

from pathlib import Path

import pytest

from services.generator.engines.vllm_arguments import arguments
from services.generator.engines.vllm_settings import VllmSettings
from services.generator.settings import GeneratorSettings
from services.runtime.settings import load, variables

FOLDER = Path(__file__).parents[3] / "infra" / "profiles"
PROFILES = sorted(FOLDER.glob("*.env"))
KNOWN = {each.name for cls in (VllmSettings, GeneratorSettings) for each in variables(cls)}


def read(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_they_are_all_told_of():
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(PROFILES) == 4
    assert all(f"`{path.name}`" in told for path in PROFILES)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_can_be_loaded(path):
    env = read(path)
    assert env.keys() <= KNOWN
    settings = load(VllmSettings, env | {"RAILBUS_VLLM_DRAFT": "draft"})
    found = arguments(settings, Path("target"), gemma_drafts_gemma=True)
    assert found["disable_hybrid_kv_cache_manager"] is True
    schedule = settings.schedule()
    assert schedule is None or schedule[-1][1] == settings.vllm_max_seqs
    assert load(GeneratorSettings, env).engine == "vllm"
