"""Tier 1: NeMo Guardrails' output rails on a window of the answer."""

import logging
from typing import Any

from services.policy import Policy
from services.policy.nemo import add_rail, build_engine
from services.safety.checks import CheckFailed
from services.safety.looks import Spot
from services.safety.rail import CUSTOM_KEY, FLOW, SPOTS

logging.getLogger("nemoguardrails").setLevel(logging.WARNING)  # below that it may log texts

CATEGORY = "rail"
"""Of a finding by a rail that gives no category of its own."""

_REGEX_RAIL = "regex check output"


class NemoCheck:
    """The output rails of one policy version."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._rails = engine.rails_manager
        regex = engine.config.rails.config.regex_detection
        self._regexes = () if regex is None else tuple(regex.output.compiled_patterns)

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What NeMo's output rails find in the window.

        Raises:
            CheckFailed: A rail raised instead of deciding: that is not a finding, and not a pass.
        """
        spots: list[Spot] = []
        token = SPOTS.set(spots)
        try:
            result = await self._rails.is_output_safe([], text)
        finally:
            SPOTS.reset(token)
        if result.outcome.failed:
            raise CheckFailed(f"rail {result.triggered_rail!r} raised")
        if not result.is_safe or result.outcome.is_transform:
            spots.extend(self._spots_of(result.triggered_rail or "rail", text))
        return tuple(spots)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()

    def _spots_of(self, rail: str, text: str) -> list[Spot]:
        """NeMo says which rail, not where: for its regexes that can be found out, else it is the whole window."""
        name = f"nemo/{rail}"
        if rail == _REGEX_RAIL:
            found = [match.span() for regex in self._regexes for match in regex.finditer(text)]
            if found:
                return [Spot(name, CATEGORY, start, end) for start, end in found]
        return [Spot(name, CATEGORY, 0, len(text))]


async def nemo_check(policy: Policy) -> NemoCheck:
    """The output rails of a policy, started.

    Raises:
        BrokenPolicy: NeMo does not take its configuration.
    """
    add_rail(FLOW, "output", "services.safety.rail:railbus_output")
    return NemoCheck(await build_engine(policy, "output", {CUSTOM_KEY: policy.folded}))
