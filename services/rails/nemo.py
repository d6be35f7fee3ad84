import logging
from typing import Any, Final

from schemas.requests import Message
from services.policy import Policy
from services.policy.engines.nemo import build_engine
from services.rails.rail import PASSED, RailAnswer, RailFailed

logging.getLogger("nemoguardrails").setLevel(logging.WARNING)  # below that it may log user text

PREFIX: Final = "nemo/"
"""Prefix of a flow's name in verdicts."""


class NemoRails:
    """The input rails that a policy defines in ``nemo/config.yml``. NeMo Guardrails runs them.

    Attributes:
        flows: The NeMo flow of each rail, by rail name, in the order of the configuration.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.flows: dict[str, str] = {PREFIX + flow: flow for flow in engine.config.rails.input.flows}

    async def evaluate(self, flow: str, messages: tuple[Message, ...]) -> RailAnswer:
        """Run a flow on all messages as one text.

        Raises:
            RailFailed: The flow raised an error, or rewrote the prompt.
        """
        text = "\n".join(message.content for message in messages)
        result = await self._engine.rails_manager.is_input_safe([{"role": "user", "content": text}], enabled=[flow])
        if result.outcome.failed:
            raise RailFailed("it raised an error")
        if result.outcome.is_transform:
            raise RailFailed("it rewrites the prompt, which only rails with spans can")
        return PASSED if result.is_safe else RailAnswer(reason="default", detail="deny")

    async def close(self) -> None:
        await self._engine.stop()


async def nemo_rails(policy: Policy) -> NemoRails:
    """Build and start a policy's input rails.

    Raises:
        BrokenPolicy: NeMo rejects the policy's configuration.
    """
    return NemoRails(await build_engine(policy.files, "input", {}))
