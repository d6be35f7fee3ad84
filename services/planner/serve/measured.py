"""The kind of engine that a bench measured."""

from collections.abc import Mapping
from typing import Final

from services.physics.parallel import Layout
from services.physics.roofline import KvPrecision
from services.planner.bench.calibration import calibrate
from services.planner.bench.fit import FittedRoofline
from services.planner.bench.results import PLAIN, BenchResult, RunMeasurements
from services.planner.serve.plan import SEQUENCES, Demand, EngineKind, answers_in_memory, kind_of

SLOTS: Final[Mapping[str, tuple[str, int]]] = {
    "simulated": ("RAILBUS_SIM_BATCH", 256),
    "llama": ("RAILBUS_LLAMA_SLOTS", 4),
    "vllm": ("RAILBUS_VLLM_MAX_SEQS", 64),
}
"""For each engine, the setting that limits the answers at the same time, and its default."""


def measured_kind(result: BenchResult, demand: Demand) -> EngineKind:
    """Return the engine that was measured without drafting, with step times fitted to the measurements.

    Raises:
        UserError: The result has no closed loops, or names an unknown model or accelerator.
        ValueError: No answer fits into the engine's memory.
    """
    found, measured = calibrate(result).rooflines[PLAIN], result.of(PLAIN)[0]
    new = demand.prompt - demand.cached

    def step(running: int, prompts: float) -> float:
        return found.mixed_step_ms(running, demand.context, prompts, new)

    return kind_of(
        f"{found.target.name} on {found.gpu.name}, calibrated", found.gpu.name, _layout(measured).gpus, step, demand,
        capacity=measured_capacity(found, measured, demand), budget=found.budget,
    )  # fmt: skip


def measured_capacity(found: FittedRoofline, measured: RunMeasurements, demand: Demand) -> int:
    """Return the maximum number of answers that run at the same time in the measured engine.

    Raises:
        ValueError: No answer fits into the engine's memory.
    """
    setting, usual = SLOTS.get(measured.engine, ("", SEQUENCES))
    slots = _number(measured, setting, usual)
    if measured.engine not in {"simulated", "vllm"}:
        return slots  # the result does not say how much memory the engine has
    fp8 = measured.settings.get("RAILBUS_VLLM_KV_DTYPE", "").startswith("fp8")
    kv: KvPrecision = "fp8" if fp8 else "bf16"
    return min(slots, answers_in_memory(found.target, found.gpu, found.precision, _layout(measured), demand, kv))


def _layout(measured: RunMeasurements) -> Layout:
    return Layout(tensor=_number(measured, "RAILBUS_VLLM_TENSOR_PARALLEL", 1) if measured.engine == "vllm" else 1)


def _number(measured: RunMeasurements, setting: str, usual: int) -> int:
    text = measured.settings.get(setting, "")
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) else usual
