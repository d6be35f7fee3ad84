"""Tier 1 of the checks of answers: NeMo Guardrails' output rails. They check one window of the answer at a time.

NeMo compiles the rails, and this module runs them one by one. NeMo's own runner is not used, because it stops at the
first rail that blocks, and because it does not say where in the text a finding is.

One rail is Railbus's own and finds disguised words. It is called directly, because a call through NeMo takes
several times as long.
"""

import logging
from collections.abc import Iterable
from typing import Any, Final

from nemoguardrails.actions.rail_outcome import RailOutcome
from nemoguardrails.guardrails.compiled_rail import CompiledRail, RailDependencies, compile_rail
from nemoguardrails.http.runtime import create_http_client
from nemoguardrails.manifests import RailDirection

from services.policy import FoundSpan, Policy
from services.policy.engines.nemo import add_rail, build_engine
from services.policy.matching.folding import FoldedWords
from services.policy.source.nemo_config import FOLDED_FLOW
from services.safety.checks.executor import CheckFailed

logging.getLogger("nemoguardrails").setLevel(logging.CRITICAL + 1)  # its errors, too, may contain user text

CATEGORY: Final = "rail"
"""The category of a rail's finding if the rail gives none."""

_REGEX_RAIL: Final = "regex check output"


async def railbus_output(text: str) -> RailOutcome:  # noqa: ARG001 - NeMo compiles it, and does not run it
    """Allow any text. NeMo needs this function to compile a configuration that lists Railbus's own rail."""
    return RailOutcome.allow()


class NemoCheck:
    """Checks answers with the output rails of NeMo Guardrails (tier 1), for one version of a policy.

    Args:
        engine: A started IORails engine with the policy's output rails.
    """

    def __init__(self, engine: Any, words: FoldedWords) -> None:
        self._engine = engine
        self._words = words
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

    async def find(self, text: str) -> tuple[FoundSpan, ...]:
        """Return what NeMo's rails find in ``text``, a window of an answer.

        Raises:
            CheckFailed: A rail raised an error.
        """
        spans: list[FoundSpan] = []
        for rail in self._rails:
            if rail.surface_name == FOLDED_FLOW:
                spans += self._words.find(text)
                continue
            outcome = await rail.run([], text)
            if outcome.failed:
                raise CheckFailed(f"rail {rail.flow!r} raised")
            if outcome.is_blocked or outcome.is_transform:
                spans.extend(self._spans_of(rail, text))
        return tuple(spans)

    async def close(self) -> None:
        await self._engine.stop()
        await self._http.close()

    def _spans_of(self, rail: CompiledRail, text: str) -> Iterable[FoundSpan]:
        name = f"nemo/{rail.flow}"
        whole = (0, len(text))
        found = [whole]
        if rail.surface_name == _REGEX_RAIL:
            # A regex of only look-ahead matches no character.
            found = [
                match.span() if match.group() else whole for regex in self._regexes for match in regex.finditer(text)
            ]
        # Only regexes have spans. Another rail judges the window as a whole.
        return [FoundSpan(name, CATEGORY, start, end) for start, end in dict.fromkeys(found or [whole])]


async def nemo_check(policy: Policy) -> NemoCheck:
    """Build and start NeMo's output rails (checks of answers) for a policy.

    Raises:
        BrokenPolicy: NeMo rejects the policy's configuration.
    """
    add_rail(FOLDED_FLOW, "output", "services.safety.checks.nemo:railbus_output")
    return NemoCheck(await build_engine(policy.files, "output", {}), policy.folded)
