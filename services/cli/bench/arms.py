"""The engine settings that ``railbus bench engine`` compares, called arms. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.runtime.errors import UserError

PLAIN: Final = "plain"

_DRAFTING_SETTINGS: Final[Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]] = {
    "simulated": ({"RAILBUS_SIM_GAMMA": "0"}, {"RAILBUS_SIM_GAMMA": "{gamma}"}),
    "llama": ({"RAILBUS_LLAMA_SPECULATION": "off"}, {"RAILBUS_LLAMA_SPECULATION": "ngram"}),
    "vllm": (
        {"RAILBUS_VLLM_METHOD": "off", "RAILBUS_VLLM_DRAFT": ""},
        {"RAILBUS_VLLM_SPECULATIVE_TOKENS": "{gamma}"},
    ),
}
"""For each engine, the environment variables that switch drafting off, and those that switch it on. ``{gamma}`` stands
for the number of tokens drafted in each step."""

_ENGINE_DEFAULTS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "simulated": {
        "gpu": ("RAILBUS_SIM_GPU", "h100"), "target": ("RAILBUS_SIM_TARGET", "gemma-3-27b"),
        "draft": ("RAILBUS_SIM_DRAFT", "gemma-3-4b"), "precision": ("RAILBUS_SIM_PRECISION", "fp8"),
        "budget": ("RAILBUS_SIM_PREFILL_BUDGET", "2048"),
    },
    "llama": {
        "gpu": ("", "cpu"), "target": ("", "smollm2-135m"), "draft": ("", "ngram"), "precision": ("", "int4"),
        "budget": ("RAILBUS_LLAMA_BATCH", "128"),
    },
}  # fmt: skip
"""For each engine and each field of ``catalogue_entry``: the environment variable that sets the field, and the value of
the field if the variable is not set. If the name of the variable is empty, no variable sets the field."""


@dataclass(frozen=True, slots=True)
class BenchArm:
    """One of the compared engine settings.

    Attributes:
        name: ``plain``, ``speculative``, or a name such as ``gamma-4`` if several draft lengths are compared.
        gamma: Number of tokens drafted in each step; 0 for the arm ``plain``.
        env: Environment variables of the arm's runs.
    """

    name: str
    gamma: int
    env: Mapping[str, str]


def build_arms(
    engine: str, gammas: Sequence[int], plain: Mapping[str, str], speculative: Mapping[str, str]
) -> tuple[BenchArm, ...]:
    """Return an arm without speculation, and one arm for each draft length in ``gammas``.

    Raises:
        UserError: Speculation or its draft length cannot be set for this engine.
    """
    off, on = _DRAFTING_SETTINGS.get(engine, ({}, {}))
    off, on = plain or off, speculative or on
    if not on or dict(off) == dict(on):
        raise UserError(
            f"the settings that make engine {engine} draft are unknown: give them with --speculative NAME=VALUE (and "
            "--plain NAME=VALUE), such as --speculative RAILBUS_UPSTREAM_URL=http://127.0.0.1:8001"
        )
    if len(gammas) > 1 and not any("{gamma}" in value for value in on.values()):
        raise UserError(f"engine {engine} chooses its draft length: give one --gammas value")
    names = ["speculative"] if len(gammas) == 1 else [f"gamma-{gamma}" for gamma in gammas]
    drafting = [
        BenchArm(name, gamma, {key: value.replace("{gamma}", str(gamma)) for key, value in on.items()})
        for name, gamma in zip(names, gammas, strict=True)
    ]
    return (BenchArm(PLAIN, 0, dict(off)), *drafting)


def require_drafting(engine: str, env: Mapping[str, str]) -> None:
    """Check that the environment configures a draft method for engine ``vllm``. Other engines always pass.

    Raises:
        UserError: No draft method is configured.
    """
    if engine == "vllm" and not (env.get("RAILBUS_VLLM_DRAFT") or env.get("RAILBUS_VLLM_METHOD", "auto") != "auto"):
        raise UserError(
            "engine vllm has nothing to draft with: set RAILBUS_VLLM_DRAFT to a model's folder, or "
            "RAILBUS_VLLM_METHOD=ngram"
        )


def abba_order(which: Sequence[BenchArm], rounds: int) -> tuple[BenchArm, ...]:
    """Return the order of the runs: in each round, the arms in the given order, then in reverse order."""
    return (*which, *reversed(which)) * rounds


def catalogue_entry(engine: str, env: Mapping[str, str], flags: Mapping[str, str | None]) -> dict[str, str]:
    """Describe the engine of a benchmark: its GPU, models, precision and prefill tokens per step.

    Return an empty dict if the GPU or the target model is unknown.

    Raises:
        UserError: Only some of these facts are known, although ``flags`` gives one.
    """
    usual = {
        name: env.get(variable, "") or value for name, (variable, value) in _ENGINE_DEFAULTS.get(engine, {}).items()
    }
    if engine == "llama" and env.get("RAILBUS_MODEL_PATH"):  # the defaults are those of the default model
        del usual["target"], usual["precision"]
    # A flag replaces the environment variable.
    given = {name: value for name, value in flags.items() if value is not None}
    found = usual | given
    missing = [f"--{name}" for name in flags if name not in found]
    if given and missing:
        raise UserError(
            f"--{next(iter(given))} is for the prediction, which also needs {', '.join(missing)}: give all, or none"
        )
    return found if {"gpu", "target"} <= set(found) else {}
