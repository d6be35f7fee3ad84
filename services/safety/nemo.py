"""Tier 1: NeMo Guardrails' output rails on a window of the answer.

The rails are compiled by NeMo and run one by one here. Its own runner stops at the first that blocks and says no more:
then one finding would hide the others for as long as it is in the window, and none would have a span.

Our own among them looks for words in disguise. What it finds has spans, which NeMo's verdict has no place for, so they
are handed over as the outcome's evidence, and the outcome is never a block: what a finding means is Rego's to say.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

from nemoguardrails.actions.rail_outcome import RailOutcome
from nemoguardrails.guardrails.compiled_rail import CompiledRail, RailDependencies, compile_rail
from nemoguardrails.http.runtime import create_http_client
from nemoguardrails.manifests import RailDirection

from services.policy import Policy
from services.policy.folding import FoldedWords
from services.policy.nemo import add_rail, build_engine
from services.safety.checks import CheckFailed
from services.safety.looks import Spot

logging.getLogger("nemoguardrails").setLevel(logging.WARNING)  # below that it may log texts

CATEGORY: Final = "rail"
"""Of a finding by a rail that gives no category of its own."""

FLOW: Final = "railbus output"
CUSTOM_KEY: Final = "railbus_folded"
SPOTS: Final = "railbus_spots"
"""Where in an outcome's metadata the spots of our rail are."""

_REGEX_RAIL: Final = "regex check output"
_NOTHING: Final = RailOutcome.allow()


async def railbus_output(text: str, config: Any) -> RailOutcome:
    """Look for the policy's folded words."""
    words: FoldedWords = config.custom_data[CUSTOM_KEY]
    found = words.find(text)
    return RailOutcome.allow(metadata={SPOTS: [Spot(*match) for match in found]}) if found else _NOTHING


class NemoCheck:
    """The output rails of one policy version.

    Args:
        engine: A started IORails engine with the policy's output rails.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._http = create_http_client()
        manager = engine.rails_manager
        dependencies = RailDependencies(
            llms=manager.engine_registry.llms,
            llm_task_manager=manager.task_manager,
            config=engine.config,
            http_client=self._http,
        )
        self._rails: tuple[CompiledRail, ...] = tuple(
            compile_rail(flow, RailDirection.OUTPUT, dependencies) for flow in manager.output_flows
        )
        regex = engine.config.rails.config.regex_detection
        self._regexes = () if regex is None else tuple(regex.output.compiled_patterns)

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What any of the rails finds in the window.

        Raises:
            CheckFailed: A rail raised instead of deciding: that is not a finding, and not a pass.
        """
        spots: list[Spot] = []
        for rail in self._rails:
            outcome = await rail.run([], text)
            if outcome.failed:
                raise CheckFailed(f"rail {rail.flow!r} raised")
            if SPOTS in outcome.metadata:
                spots.extend(outcome.metadata[SPOTS])
            elif outcome.is_blocked or outcome.is_transform:
                spots.extend(self._spots_of(rail, text))
        return tuple(spots)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()
        await self._http.close()

    def _spots_of(self, rail: CompiledRail, text: str) -> Iterable[Spot]:
        """NeMo says which rail, not where: for its regexes that can be found out, else it is the whole window."""
        name = f"nemo/{rail.flow}"
        found = []
        if rail.surface_name == _REGEX_RAIL:
            found = [match.span() for regex in self._regexes for match in regex.finditer(text)]
        return [Spot(name, CATEGORY, start, end) for start, end in found or [(0, len(text))]]


async def nemo_check(policy: Policy) -> NemoCheck:
    """The output rails of a policy, started.

    Raises:
        BrokenPolicy: NeMo does not take its configuration.
    """
    add_rail(FLOW, "output", "services.safety.nemo:railbus_output")
    return NemoCheck(await build_engine(policy, "output", {CUSTOM_KEY: policy.folded}))
