"""Engines, each imported only where it runs."""

from collections.abc import Mapping

from services.runtime.settings import load
from services.worker.engine import Engine, EngineName


def make(name: EngineName, env: Mapping[str, str]) -> Engine:
    """The engine of that name with its settings from the environment, not started yet.

    Raises:
        UserError: A setting is wrong, or a package it needs is not installed.
    """
    if name == "llama":
        from services.generator.engines.llama import LlamaEngine, LlamaSettings

        return LlamaEngine(load(LlamaSettings, env))
    if name == "openai":
        from services.generator.engines.openai import OpenAIEngine, OpenAISettings

        return OpenAIEngine(load(OpenAISettings, env))
    if name == "vllm":
        from services.generator.engines.vllm import VllmEngine
        from services.generator.engines.vllm_settings import VllmSettings

        return VllmEngine(load(VllmSettings, env))
    from services.generator.engines.simulated import SimulatedEngine
    from services.generator.engines.simulated_settings import SimulatedSettings

    return SimulatedEngine(load(SimulatedSettings, env))
