import logging
from typing import Any, Final

from nemoguardrails.actions.rail_outcome import TransformTarget
from nemoguardrails.guardrails.guardrails_types import RailDirection

from schemas.requests import Message
from services.policy import Policy
from services.policy.engines.nemo import build_engine
from services.rails.rail import PASSED, RailAnswer, RailFailed

logging.getLogger("nemoguardrails").setLevel(logging.CRITICAL + 1)  # its errors, too, may contain user text

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
        # NeMo's public method runs all flows with the same name, whatever their parameters.
        compiled = engine.rails_manager._rails  # noqa: SLF001
        self._rails = {flow: compiled[RailDirection.INPUT, flow] for flow in self.flows.values()}

    async def evaluate(self, flow: str, messages: tuple[Message, ...]) -> RailAnswer:
        """Run a flow on all messages as one text.

        Raises:
            RailFailed: The flow raised an error, or rewrote the prompt.
        """
        text = "\n".join(message.content for message in messages)
        outcome = await self._rails[flow].run([{"role": "user", "content": text}])
        if outcome.failed:
            raise RailFailed("it raised an error")
        if outcome.is_transform and outcome.transform_text.get(TransformTarget.USER_MESSAGE.value) != text:
            raise RailFailed("it rewrites the prompt, which only rails with spans can")
        return RailAnswer(reason="default", detail="deny") if outcome.is_blocked else PASSED

    async def close(self) -> None:
        await self._engine.stop()


async def nemo_rails(policy: Policy) -> NemoRails:
    """Build and start a policy's input rails.

    Raises:
        BrokenPolicy: NeMo rejects the policy's configuration.
    """
    return NemoRails(await build_engine(policy.files, "input", {}))
