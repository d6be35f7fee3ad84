from collections.abc import Mapping

from services.runtime.settings import load_settings
from services.worker.engine import Engine, EngineName


def make(name: EngineName, env: Mapping[str, str]) -> Engine:
    """Create an engine without starting it. Its settings are read from ``env``.

    Raises:
        UserError: A setting is wrong, or a required package is not installed.
    """
    # The module of an engine is imported only in a process that runs this engine.
    if name == "llama":
        from services.generator.engines.llama import LlamaEngine, LlamaSettings

        return LlamaEngine(load_settings(LlamaSettings, env))
    if name == "openai":
        from services.generator.engines.openai import OpenAIEngine, OpenAISettings

        return OpenAIEngine(load_settings(OpenAISettings, env))
    if name == "vllm":
        from services.generator.engines.vllm.engine import VllmEngine
        from services.generator.engines.vllm.settings import VllmSettings

        return VllmEngine(load_settings(VllmSettings, env))
    from services.generator.engines.simulated.engine import SimulatedEngine
    from services.generator.engines.simulated.settings import SimulatedSettings

    return SimulatedEngine(load_settings(SimulatedSettings, env))
