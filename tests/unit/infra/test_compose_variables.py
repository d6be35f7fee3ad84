"""Test that a GPU profile's variables reach the services, and that all Compose profiles can be combined."""

from dataclasses import fields
from itertools import chain, combinations

import pytest

from services.generator.engines.vllm.engine import FIRST_TOKEN_TIMEOUT_S
from services.generator.engines.vllm.settings import VllmSettings
from services.generator.settings import GeneratorSettings
from services.router.settings import Settings as RouterSettings
from services.runtime.settings import load_settings, settings_variables
from services.vertex.settings import VertexSettings
from tests.support.compose_file import (
    compose_program,
    container_environment,
    interpolated,
    load,
    project_variables,
    read_env_file,
    real_config,
    references,
)
from tests.support.processes import ROOT

COMPOSE = load()
SERVICES = COMPOSE["services"]
GENERATOR, ROUTER = SERVICES["generator-gpu"], SERVICES["router"]
GPU_PROFILES = sorted(path for path in (ROOT / "infra" / "profiles").glob("*.env") if path.stem != "cpu-test")
CLASSES = (VllmSettings, GeneratorSettings)
OF_GENERATOR = {each.name for cls in CLASSES for each in settings_variables(cls)}
OF_ROUTER = {each.name for each in settings_variables(RouterSettings)} - OF_GENERATOR
NAMES = sorted({profile for service in SERVICES.values() for profile in service.get("profiles", [])})
COMBINATIONS = list(chain.from_iterable(combinations(NAMES, count) for count in range(len(NAMES) + 1)))

each_profile = pytest.mark.parametrize("path", GPU_PROFILES, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def compose():
    return compose_program()


def settings(env):
    return [load_settings(cls, env) for cls in CLASSES]


@each_profile
def test_each_variable_of_a_profile_reaches_generator_or_router_settings(path):
    written = read_env_file(path)
    variables = project_variables(path, {})
    seen = container_environment(GENERATOR, variables)
    assert {name: seen.get(name) for name in written.keys() & OF_GENERATOR} == {
        name: value for name, value in written.items() if name in OF_GENERATOR
    }
    compose_s_own = {name: seen[name] for name in ("RAILBUS_INPUT_GATE", "RAILBUS_OUTPUT_CHECK")}
    assert settings(seen) == settings(written | compose_s_own)
    judged = container_environment(ROUTER, variables)
    assert {name: judged.get(name) for name in written.keys() & OF_ROUTER} == {
        name: value for name, value in written.items() if name in OF_ROUTER
    }
    assert written.keys() <= OF_GENERATOR | OF_ROUTER | references(COMPOSE)


@each_profile
def test_a_profile_alone_takes_the_requests_and_has_its_gpus(path):
    variables = project_variables(path, {})
    assert interpolated(SERVICES["generator"]["scale"], variables) == "0"
    (device,) = GENERATOR["deploy"]["resources"]["reservations"]["devices"]
    vllm, _ = settings(container_environment(GENERATOR, variables))
    assert int(interpolated(device["count"], variables)) == vllm.vllm_tensor_parallel
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert interpolated(GENERATOR["mem_limit"], variables) == variables["RAILBUS_GENERATOR_MEMORY"]


def test_the_shell_goes_before_the_file():
    path = GPU_PROFILES[0]
    seen = container_environment(GENERATOR, project_variables(path, {"RAILBUS_VLLM_MAX_SEQS": "3"}))
    assert settings(seen)[0].vllm_max_seqs == 3
    assert read_env_file(path)["RAILBUS_VLLM_MAX_SEQS"] != "3"


def test_every_setting_of_the_engine_can_be_set_from_outside():
    fixed = {"RAILBUS_ENGINE", "RAILBUS_VLLM_DEVICE", "RAILBUS_INPUT_GATE", "RAILBUS_OUTPUT_CHECK"}
    assert references(GENERATOR) >= OF_GENERATOR - fixed
    assert {each for each in GENERATOR["environment"] if GENERATOR["environment"][each] is None} <= OF_GENERATOR


def test_without_a_profile_the_cpus_generator_is_there_and_the_gpus_is_not():
    assert interpolated(SERVICES["generator"]["scale"], {}) == "1"
    assert "profiles" not in SERVICES["generator"]
    assert GENERATOR["profiles"] == ["gpu"]


def test_the_engine_has_as_long_to_start_as_its_setting_says():
    assert GENERATOR["healthcheck"]["start_period"] == "130m"
    most = {field.name: field.metadata.get("le") for field in fields(VllmSettings)}["vllm_start_timeout_s"]
    assert most + FIRST_TOKEN_TIMEOUT_S < 130 * 60


def test_the_fallback_reaches_router_and_worker():
    shell = {"RAILBUS_FALLBACK": "vertex", "RAILBUS_FALLBACK_USD_PER_HOUR": "2.5", "RAILBUS_VERTEX_MODEL": "m"}
    router = load_settings(RouterSettings, container_environment(ROUTER, shell))
    assert (router.fallback, router.fallback_usd_per_hour) == ("vertex", 2.5)
    vertex = load_settings(VertexSettings, container_environment(SERVICES["vertex"], shell))
    assert (vertex.vertex_model, vertex.vertex_location) == ("m", "global")


@pytest.mark.parametrize("profiles", COMBINATIONS, ids=lambda names: "+".join(names) or "none")
def test_compose_accepts_every_combination_of_profiles(compose, profiles):
    config = real_config(compose, profiles=profiles, shell={})
    wanted = {name for name, each in SERVICES.items() if not (own := each.get("profiles")) or set(own) & set(profiles)}
    assert config["services"].keys() == wanted


@each_profile
def test_compose_gives_the_containers_what_is_computed_here(compose, path):
    shell = {"RAILBUS_VLLM_MAX_SEQS": "3", "RAILBUS_FALLBACK": "vertex"}
    profiles = ["gpu", "vertex"]
    config = real_config(compose, profiles=profiles, env_file=path, shell=shell)
    for name, service in config["services"].items():
        seen = {key: value for key, value in service.get("environment", {}).items() if value is not None}
        assert seen == container_environment(SERVICES[name], project_variables(path, shell)), name
    (device,) = config["services"]["generator-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["count"] == int(read_env_file(path)["RAILBUS_VLLM_TENSOR_PARALLEL"])
    assert config["services"]["generator"]["scale"] == 0
