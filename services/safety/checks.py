"""What the looks of tier 1 and 2 are answered by. Adapters: the core knows none of this."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from services.policy import Policy
from services.safety.looks import Spot


class CheckFailed(Exception):
    """The check came to no answer. The message holds no text of anyone's."""


class Check(Protocol):
    """Something that judges windows of text under one policy."""

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What is found in the window; a whole-window verdict is a spot over all of it.

        Raises:
            CheckFailed: No answer.
        """

    async def close(self) -> None:
        """Release what it holds."""


CheckFactory = Callable[[Policy], Awaitable[Check]]
"""Builds a check for a policy, ready; raises ``BrokenPolicy`` when the policy's configuration of it cannot be used."""
