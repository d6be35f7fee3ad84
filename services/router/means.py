"""What all requests of a router share: the breaker, the budget, the memory for prompts. Pure."""

from services.router.breaker import Breaker
from services.router.budget import Budget
from services.router.policy import Policy


class Means:
    """Pure state, handed to every shard."""

    __slots__ = ("_prompt_room", "breaker", "budget")

    def __init__(self, policy: Policy) -> None:
        self.breaker = Breaker(policy.breaker_trip)
        self.budget = Budget(policy.limits)
        self._prompt_room = policy.prompt_chars

    def keep(self, chars: int) -> bool:
        """Whether there is room for a prompt; it is taken then."""
        if chars > self._prompt_room:
            return False
        self._prompt_room -= chars
        return True

    def drop(self, chars: int) -> None:
        """A prompt is not needed any more."""
        self._prompt_room += chars
