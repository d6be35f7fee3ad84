"""A policy's input rails through NeMo Guardrails' engine, one flow at a time.

NeMo would run them beside each other as well, but it tells of one outcome only; here each has its own outcome, time
and cancellation.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from schemas.requests import Message
from services.policy import BrokenPolicy, Fault, Policy
from services.policy.nemo import CONFIG, add_rail, build_engine
from services.rails.answers import PASSED, Answer, RailBroke
from services.rails.flows import DESK, FLOWS, Desk

logging.getLogger("nemoguardrails").setLevel(logging.WARNING)  # below that it may log texts

PREFIX: Final = "nemo/"
"""Before the name of a flow that is NeMo's own or the owner's."""


class NemoRails:
    """The input flows of one policy version.

    Attributes:
        others: Flows that are not ours, in the configuration's order.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._rails = engine.rails_manager
        self.others = tuple(flow for flow in engine.config.rails.input.flows if flow not in FLOWS)

    async def ours(self, flow: str, look: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run one of our flows.

        Raises:
            RailBroke: NeMo did not come to run it.
        """
        desk = Desk(look)
        token = DESK.set(desk)
        try:
            await self._rails.is_input_safe([], enabled=[flow])
        finally:
            DESK.reset(token)
        if desk.error is not None:
            raise desk.error
        if desk.answer is None:
            raise RailBroke("NeMo did not run it")
        return desk.answer

    async def other(self, flow: str, messages: tuple[Message, ...]) -> Answer:
        """Run a flow of NeMo's or of the owner's on everything that was said, as one text.

        Raises:
            RailBroke: It raised, or wants the prompt rewritten.
        """
        text = "\n".join(message.content for message in messages)
        result = await self._rails.is_input_safe([{"role": "user", "content": text}], enabled=[flow])
        if result.outcome.failed:
            raise RailBroke("it raised")
        if result.outcome.is_transform:
            raise RailBroke("it rewrites the prompt, which only rails with spans can")
        return PASSED if result.is_safe else Answer(reason="default", detail="deny")

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()


async def nemo_rails(policy: Policy) -> NemoRails:
    """The input rails of a policy, started.

    Raises:
        BrokenPolicy: NeMo does not take its configuration, or ``config.yml`` and ``policy.toml`` name different rails.
    """
    for flow in FLOWS:
        add_rail(flow, "input", "services.rails.flows:railbus_rail")
    rails = NemoRails(await build_engine(policy, "input", {}))
    named = {rail.name for rail in policy.document.rails.rail} - {"admission"}
    configured = {FLOWS[flow] for flow in rails._engine.config.rails.input.flows if flow in FLOWS}  # noqa: SLF001
    if named != configured:
        await rails.close()
        odd = min(named ^ configured)
        where = "only in policy.toml" if odd in named else "only in nemo/config.yml"
        raise BrokenPolicy([Fault(CONFIG, 0, f"rail {odd!r} stands {where}; name it in both, or in neither")])
    return rails
