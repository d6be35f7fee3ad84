"""Measurements of one request: the time of each step, and the engine's counts at the end."""

from dataclasses import dataclass, field

from schemas.stream import Speculation, Usage
from services.worker.engine import EngineStep, GenerationResult


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are milliseconds since the request was due, which may be before it was sent.

    Attributes:
        due_ms: When the request was due, in milliseconds since its loop began.
        steps: Time and token count of each step.
        total_ms: When the request ended.
        usage: The engine's token counts.
        speculation: The engine's drafting totals; None when it does not report them.
        error: Why the request failed; None if it did not.
    """

    due_ms: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    total_ms: float = 0.0
    usage: Usage | None = None
    speculation: Speculation | None = None
    error: str | None = None

    def add(self, item: EngineStep | GenerationResult, now_ms: float) -> None:
        """Record an item received ``now_ms`` after the request was due."""
        if isinstance(item, EngineStep):
            if item.tokens:
                self.steps.append((round(now_ms, 3), item.tokens))
        else:
            self.usage, self.speculation = item.usage, item.speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One batch of a closed loop. Its requests are sent together.

    Attributes:
        requests: The requests.
        cores: Mean number of busy CPU cores of this process and its children; None if it cannot be measured.
    """

    requests: list[RequestRecord]
    cores: float | None
