"""Presidio's recognizers as a check of windows."""

from services.policy.presidio import Presidio
from services.safety.looks import Spot


class PresidioCheck:
    """Stateless; its work is done in a thread, a millisecond or two a window."""

    def __init__(self) -> None:
        self._presidio = Presidio()

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What the recognizers find."""
        return tuple(Spot(*one) for one in await self._presidio.find(text))

    async def close(self) -> None:
        """Nothing to release."""
