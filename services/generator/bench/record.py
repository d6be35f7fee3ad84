"""The measurements of one request: the time of each step, and the token counts at the end."""

from dataclasses import dataclass, field

from schemas.stream import Speculation, Usage
from services.worker.engine import EngineStep, GenerationResult


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The measurements of one request. Times except ``due_ms`` are milliseconds since the request was due.

    A request may be sent later than it was due.

    Attributes:
        due_ms: When the request was due, in milliseconds since its loop started.
        steps: Time and token count of each step that generated tokens.
        total_ms: When the answer ended or failed.
        usage: The engine's token counts; None if the request failed.
        speculation: The engine's totals of drafted and accepted tokens; None if it does not report them.
        error: Reason why the request failed; None if it did not fail.
    """

    due_ms: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    total_ms: float = 0.0
    usage: Usage | None = None
    speculation: Speculation | None = None
    error: str | None = None

    def add(self, item: EngineStep | GenerationResult, now_ms: float) -> None:
        """Record an item that was received ``now_ms`` milliseconds after the request was due."""
        if isinstance(item, EngineStep):
            if item.tokens:
                self.steps.append((round(now_ms, 3), item.tokens))
        else:
            self.usage, self.speculation = item.usage, item.speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The measurements of one batch of a closed loop. The requests of a batch are sent at the same time.

    Attributes:
        requests: The measurements of the batch's requests.
        cores: Mean number of CPU cores that this process and its descendants kept busy; None if it cannot be measured.
    """

    requests: list[RequestRecord]
    cores: float | None
