"""What the router is allowed to do, as one value."""

from dataclasses import dataclass
from typing import Final

from schemas.requests import Deadlines
from schemas.stream import Gate

RETRY_US: Final = 5_000_000
"""A decision that has not come back from the log after this time is written again."""

SETTLE_US: Final = 1_000_000
"""After ``Closed``, how long the account waits for the last words (usage) of executions that were cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Bounds and choices of the operator.

    Attributes:
        input_gate: ``hold``: a verdict is expected of every request, unless its ``Started`` says ``off``.
        client_grace_ms: A client that was attached and is gone for longer ends its request.
        total_max_ms: Longest total deadline; a request that asks for more gets this. Bounds the router's memory.
        max_open: Most requests open at once in one partition; more are closed ``failed``.
    """

    input_gate: Gate = "off"
    client_grace_ms: int = 5_000
    total_max_ms: int = 600_000
    max_open: int = 25_000

    @property
    def window_us(self) -> int:
        """Nothing that is older can still need a decision: twice the longest total deadline, in microseconds."""
        return 2 * self.total_max_ms * 1_000

    def total_us(self, deadlines: Deadlines) -> int:
        """The total deadline that holds, in microseconds after receipt."""
        return min(deadlines.total_ms, self.total_max_ms) * 1_000
