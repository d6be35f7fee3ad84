"""What ``railbus bench engine`` compares, and in which order it runs. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.runtime.errors import UserError

PLAIN: Final = "plain"

_SWITCHES: Final[Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]] = {
    "simulated": ({"RAILBUS_SIM_GAMMA": "0"}, {"RAILBUS_SIM_GAMMA": "{gamma}"}),
    "llama": ({"RAILBUS_LLAMA_SPECULATION": "off"}, {"RAILBUS_LLAMA_SPECULATION": "ngram"}),
    "vllm": (
        {"RAILBUS_VLLM_METHOD": "off", "RAILBUS_VLLM_DRAFT": ""},
        {"RAILBUS_VLLM_SPECULATIVE_TOKENS": "{gamma}"},
    ),
}
"""How an engine is told not to draft, and to draft."""

_CATALOGUE: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "simulated": {
        "gpu": ("RAILBUS_SIM_GPU", "h100"), "target": ("RAILBUS_SIM_TARGET", "gemma-3-27b"),
        "draft": ("RAILBUS_SIM_DRAFT", "gemma-3-4b"), "precision": ("RAILBUS_SIM_PRECISION", "fp8"),
        "budget": ("RAILBUS_SIM_PREFILL_BUDGET", "2048"),
    },
    "llama": {
        "gpu": ("", "cpu"), "target": ("", "smollm2-135m"), "draft": ("", "ngram"), "precision": ("", "int4"),
        "budget": ("", "128"),
    },
}  # fmt: skip
"""What an engine runs by default, in the planner's words: the variable that says it, and what holds without it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What is run with which settings.

    Attributes:
        name: ``plain``, ``speculative``, or ``gamma-4`` where several are compared.
        gamma: Tokens drafted a step; 0 for plain.
        env: The settings that make it so.
    """

    name: str
    gamma: int
    env: Mapping[str, str]


def arms(
    engine: str, gammas: Sequence[int], plain: Mapping[str, str], speculative: Mapping[str, str]
) -> tuple[Arm, ...]:
    """The plain arm, and one for each gamma.

    Raises:
        UserError: Nobody said how this engine is told to draft.
    """
    off, on = _SWITCHES.get(engine, ({}, {}))
    off, on = plain or off, speculative or on
    if not on or dict(off) == dict(on):
        raise UserError(
            f"how engine {engine} is told to draft is not known: say it with --speculative NAME=VALUE (and --plain "
            "NAME=VALUE), such as --speculative RAILBUS_UPSTREAM_URL=http://127.0.0.1:8001"
        )
    if len(gammas) > 1 and not any("{gamma}" in value for value in on.values()):
        raise UserError(f"engine {engine} drafts as many tokens as it likes: give one --gammas")
    names = ["speculative"] if len(gammas) == 1 else [f"gamma-{gamma}" for gamma in gammas]
    drafting = [
        Arm(name, gamma, {key: value.replace("{gamma}", str(gamma)) for key, value in on.items()})
        for name, gamma in zip(names, gammas, strict=True)
    ]
    return (Arm(PLAIN, 0, dict(off)), *drafting)


def require_drafting(engine: str, env: Mapping[str, str]) -> None:
    """Refuse to compare an engine with itself: vLLM drafts only when it is told with what.

    Raises:
        UserError: It is not.
    """
    if engine == "vllm" and not (env.get("RAILBUS_VLLM_DRAFT") or env.get("RAILBUS_VLLM_METHOD", "auto") != "auto"):
        raise UserError(
            "engine vllm has nothing to draft with: set RAILBUS_VLLM_DRAFT to a model's folder, or "
            "RAILBUS_VLLM_METHOD=ngram"
        )


def order(which: Sequence[Arm], rounds: int) -> tuple[Arm, ...]:
    """A B B A, so many times: what drifts while it is measured (heat, neighbours) falls on every arm alike."""
    return (*which, *reversed(which)) * rounds


def catalogue(engine: str, env: Mapping[str, str], said: Mapping[str, str | None]) -> dict[str, str]:
    """What the prediction is about: what was said, else what the engine runs by default; empty where neither is known.

    Args:
        engine: Which one.
        env: Its settings.
        said: Flags by name; None where a flag was not given.
    """
    usual = {name: env.get(variable, "") or value for name, (variable, value) in _CATALOGUE.get(engine, {}).items()}
    found = usual | {name: value for name, value in said.items() if value is not None}
    return found if {"gpu", "target"} <= set(found) else {}
