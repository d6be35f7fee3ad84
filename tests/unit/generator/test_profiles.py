"""The files in `infra/profiles` set existing settings to valid values."""

from pathlib import Path

import pytest

from services.generator.engines.vllm.arguments import engine_arguments
from services.generator.engines.vllm.settings import VllmSettings
from services.generator.settings import GeneratorSettings
from services.runtime.settings import load_settings, settings_variables

FOLDER = Path(__file__).parents[3] / "infra" / "profiles"
PROFILES = sorted(FOLDER.glob("*.env"))
KNOWN = {each.name for cls in (VllmSettings, GeneratorSettings) for each in settings_variables(cls)}


def read(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_readme_lists_every_profile():
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert len(PROFILES) == 4
    assert all(f"`{path.name}`" in told for path in PROFILES)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_a_profile_can_be_loaded(path):
    env = read(path)
    assert env.keys() <= KNOWN
    settings = load_settings(VllmSettings, env | {"RAILBUS_VLLM_DRAFT": "draft"})
    found = engine_arguments(settings, Path("target"), gemma_drafts_gemma=True)
    assert found["disable_hybrid_kv_cache_manager"] is True
    schedule = settings.schedule()
    assert schedule is None or schedule[-1][1] == settings.vllm_max_seqs
    assert load_settings(GeneratorSettings, env).engine == "vllm"
