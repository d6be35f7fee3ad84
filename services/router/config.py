"""The configuration of ``RouterCore``."""

from dataclasses import dataclass, field
from math import ceil
from typing import Final, Literal

import msgspec

from schemas.requests import LONGEST_TOTAL_MS, Deadlines, Request
from schemas.stream import InputGate, OutputCheck, Usage
from services.runtime.classes.policy_deadlines import WIDEST_BOUNDS, Bounds
from services.runtime.classes.service_classes import ServiceClasses

RETRY_US: Final = 5_000_000
"""If a decision was not read back from the log this many microseconds after it was written, it is written again."""

SETTLE_US: Final = 1_000_000
"""Microseconds after ``Closed`` for which the account waits for the usage of cancelled runs."""

UNBOUNDED: Final = ServiceClasses(bounds=WIDEST_BOUNDS)

CHARS_PER_TOKEN: Final = 4
"""Characters per token of English text in common tokenizers. Used for estimates only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackLimits:
    """Limits for one kind of attempts (fallbacks or retries) within the last minute.

    Attributes:
        ratio: Maximum ratio of these attempts to requests.
        free: Number of these attempts that are allowed even if ``ratio`` is reached.
        usd: Maximum price of the attempts of one minute, in US dollars; None for no limit.
    """

    ratio: float = 0.25
    free: int = 20
    usd: float | None = None

    def share(self, part: float) -> "FallbackLimits":
        """Return the limits for one router. ``part`` is its share of all partitions, from 0 to 1."""
        usd = None if self.usd is None else self.usd * part
        return FallbackLimits(ratio=self.ratio, free=ceil(self.free * part), usd=usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of the cloud model, in US dollars per million tokens."""

    input: float = 0.30
    output: float = 2.50

    def of(self, usage: Usage) -> float:
        return (usage.prompt_tokens * self.input + usage.completion_tokens * self.output) / 1e6

    def estimate(self, prompt_chars: int, max_tokens: int) -> float:
        return self.of(Usage(prompt_tokens=prompt_chars // CHARS_PER_TOKEN, completion_tokens=max_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """The router's limits and choices. ``Settings`` describes the other fields.

    Attributes:
        retry_limits: The limits on retries of interactive requests, for all routers together.
        limits: The limits on attempts in the cloud, for all routers together.
        prompt_chars: Maximum total length, in characters, of the prompts that the router keeps for further attempts.
    """

    input_gate: InputGate = "off"
    output_check: OutputCheck = "off"
    client_grace_ms: int = 5_000
    classes: ServiceClasses = UNBOUNDED
    total_max_ms: int = LONGEST_TOTAL_MS
    max_open: int = 25_000
    max_batch_open: int = 100_000
    fallback: Literal["off", "vertex"] = "off"
    max_fallbacks: int = 1
    max_retries: int = 0
    max_batch_retries: int = 0
    retry_limits: FallbackLimits = field(default_factory=lambda: FallbackLimits(ratio=1.0, free=100))
    ttft_bounds_ms: Bounds = (1, 600_000)
    ttft_ms_per_1000_chars: float = 0.0
    stall_bounds_ms: Bounds = (1, 600_000)
    breaker_trip: int = 5
    limits: FallbackLimits = field(default_factory=FallbackLimits)
    when_spent: Literal["wait", "close"] = "wait"
    prices: Prices = field(default_factory=Prices)
    prompt_chars: int = 64_000_000

    @property
    def window_us(self) -> int:
        """How far back a starting router reads the log, in microseconds."""
        return 2 * self.total_max_ms * 1_000

    def deadlines_of(self, request: Request) -> Deadlines:
        """Return a request's deadlines, each moved to the nearest value that the request's class allows.

        The deadlines of an interactive request are then also moved to the nearest values that the settings allow.
        """
        deadlines = self.classes.deadlines_of(request)
        return deadlines if request.lane == "batch" else self.narrow(deadlines)

    def narrow(self, deadlines: Deadlines) -> Deadlines:
        """Return an interactive request's deadlines, each moved to the nearest value that the settings allow."""
        bounds = msgspec.structs.replace(
            WIDEST_BOUNDS,
            ttft_ms=self.ttft_bounds_ms,
            stall_ms=self.stall_bounds_ms,
            total_ms=(1, self.total_max_ms),
        )
        return bounds.clamp(deadlines)

    def ttft_us(self, deadlines: Deadlines, prompt_chars: int) -> int:
        """Return how long the first token of an attempt may take, in microseconds. A longer prompt gets more time."""
        return deadlines.ttft_ms * 1_000 + int(self.ttft_ms_per_1000_chars * prompt_chars)
