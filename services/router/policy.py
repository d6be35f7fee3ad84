"""What the router is allowed to do, as one value. Pure."""

from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.requests import Deadlines
from schemas.stream import Gate, Usage
from services.router.budget import Limits

RETRY_US: Final = 5_000_000
"""A decision that has not come back from the log after this time is written again."""

SETTLE_US: Final = 1_000_000
"""After ``Closed``, how long the account waits for the last words (usage) of executions that were cancelled."""

CHARS_PER_TOKEN: Final = 4
"""For estimates only: English text in common tokenizers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """What a request may ask for, in milliseconds."""

    least_ms: int = 1
    most_ms: int = 600_000

    def bound_us(self, asked_ms: int) -> int:
        """What holds, in microseconds."""
        return min(max(asked_ms, self.least_ms), self.most_ms) * 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars per million tokens of the cloud model."""

    input: float = 0.30
    output: float = 2.50

    def of(self, usage: Usage) -> float:
        """What this usage costs, in US dollars."""
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6

    def estimate(self, prompt_chars: int, max_tokens: int) -> float:
        """What a request may cost at most, roughly, in US dollars."""
        return self.of(Usage(prompt_tokens=prompt_chars // CHARS_PER_TOKEN, completion_tokens=max_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Bounds and choices of the operator.

    Attributes:
        input_gate: ``hold``: a verdict is expected of every request, unless its ``Started`` says ``off``.
        client_grace_ms: A client that was attached and is gone for longer ends its request.
        total_max_ms: Longest total deadline; a request that asks for more gets this. Bounds the router's memory.
        max_open: Most requests open at once in one partition; more are closed ``failed``.
        fallback: Where an attempt that the self-hosted path cannot serve goes: nowhere, or to Vertex AI.
        max_fallbacks: Most attempts of one request in the cloud.
        ttft: Bounds of a request's first-token deadline.
        ttft_ms_per_1000_chars: Added to the first-token deadline for each 1,000 characters of prompt, for its prefill.
        stall: Bounds of a request's stall deadline.
        breaker_trip: So many of ten requests must have been late or failed for new ones to go straight to the cloud; 0
            never lets them.
        limits: The fallback budget.
        when_spent: What a late or stalled request does when the budget is spent: ``wait`` on, or ``close``. One whose
            attempt has failed is closed either way.
        prices: Of the cloud model.
        prompt_chars: Most characters of prompts kept for a fallback, by the whole router; what comes on top has none.
    """

    input_gate: Gate = "off"
    client_grace_ms: int = 5_000
    total_max_ms: int = 300_000
    max_open: int = 25_000
    fallback: Literal["off", "vertex"] = "off"
    max_fallbacks: int = 1
    ttft: Range = field(default_factory=Range)
    ttft_ms_per_1000_chars: float = 0.0
    stall: Range = field(default_factory=Range)
    breaker_trip: int = 5
    limits: Limits = field(default_factory=Limits)
    when_spent: Literal["wait", "close"] = "wait"
    prices: Prices = field(default_factory=Prices)
    prompt_chars: int = 64_000_000

    @property
    def window_us(self) -> int:
        """Nothing that is older can still need a decision: twice the longest total deadline, in microseconds."""
        return 2 * self.total_max_ms * 1_000

    def total_us(self, deadlines: Deadlines) -> int:
        """The total deadline that holds, in microseconds after receipt."""
        return min(deadlines.total_ms, self.total_max_ms) * 1_000

    def ttft_us(self, deadlines: Deadlines, prompt_chars: int) -> int:
        """The first-token deadline that holds, in microseconds after receipt."""
        return self.ttft.bound_us(deadlines.ttft_ms) + int(self.ttft_ms_per_1000_chars * prompt_chars)
