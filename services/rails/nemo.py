"""The input rails that a policy's ``nemo/config.yml`` names, through NeMo Guardrails' engine. Heavy: see ``evaluator``.

NeMo would run them beside each other as well, but it tells of one outcome only; here each has its own outcome, time
and cancellation.
"""

import logging
from typing import Any, Final

from schemas.requests import Message
from services.policy import Policy
from services.policy.nemo import build_engine
from services.rails.rail import PASSED, Answer, RailBroke

logging.getLogger("nemoguardrails").setLevel(logging.WARNING)  # below that it may log texts

PREFIX: Final = "nemo/"
"""Before the name of a flow in verdicts."""


class NemoRails:
    """The input flows of one policy version.

    Attributes:
        flows: Their names by the rails' names, in the configuration's order.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.flows: dict[str, str] = {PREFIX + flow: flow for flow in engine.config.rails.input.flows}

    async def look(self, flow: str, messages: tuple[Message, ...]) -> Answer:
        """Run a flow on everything that was said, as one text.

        Raises:
            RailBroke: It raised, or wants the prompt rewritten.
        """
        text = "\n".join(message.content for message in messages)
        result = await self._engine.rails_manager.is_input_safe([{"role": "user", "content": text}], enabled=[flow])
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
        BrokenPolicy: NeMo does not take its configuration.
    """
    return NemoRails(await build_engine(policy, "input", {}))
