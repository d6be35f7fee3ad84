"""Our input rails as NeMo knows them: ``config.yml`` names them, NeMo runs them.

NeMo's verdict is one word; what a rail answers has spans, so it is handed over beside it.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

from nemoguardrails.actions.rail_outcome import RailOutcome

from services.rails.answers import Answer

FLOWS: Final = {"railbus pii": "pii", "railbus secrets": "secrets", "railbus jailbreak": "jailbreak"}
"""Name in ``config.yml`` -> name in ``policy.toml``."""


class Desk:
    """What one run of one rail is given, and where its answer is left."""

    __slots__ = ("answer", "error", "look")

    def __init__(self, look: Callable[[], Awaitable[Answer]]) -> None:
        self.look = look
        self.answer: Answer | None = None
        self.error: Exception | None = None


DESK: Final[ContextVar[Desk | None]] = ContextVar("railbus_desk", default=None)


async def railbus_rail(text: str) -> RailOutcome:  # noqa: ARG001 - the rail sees every message, not only the last
    """Run what lies on the desk.

    Raises:
        LookupError: Nobody waits for the answer; NeMo then reports the rail as failed.
    """
    desk = DESK.get()
    if desk is None:
        raise LookupError("railbus rails run only inside the rails service")
    try:
        desk.answer = await desk.look()
    except Exception as error:  # noqa: BLE001 - not raised: NeMo would log its text
        desk.error = error
        return RailOutcome.block(reason="broke")
    return RailOutcome.allow() if desk.answer.reason is None else RailOutcome.block(reason=desk.answer.reason)
