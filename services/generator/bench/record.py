"""One measured request: when each step came, and what the engine said of it in the end."""

from dataclasses import dataclass, field

from schemas.stream import Speculation, Usage
from services.worker.engine import Done, Step


@dataclass(slots=True, kw_only=True)
class Record:
    """One request; times in milliseconds since it was due, not since somebody had time for it.

    Attributes:
        due_ms: When it was due, since its loop began.
        steps: When, how many tokens.
        total_ms: When it was over.
        usage: As the engine counts.
        speculation: As the engine counts; None when it does not say.
        error: Why it failed.
    """

    due_ms: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    total_ms: float = 0.0
    usage: Usage | None = None
    speculation: Speculation | None = None
    error: str | None = None

    def heard(self, item: Step | Done, now_ms: float) -> None:
        """An item came, so long after the request was due."""
        if isinstance(item, Step):
            if item.tokens:
                self.steps.append((round(now_ms, 3), item.tokens))
        else:
            self.usage, self.speculation = item.usage, item.speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Requests that were asked together.

    Attributes:
        requests: All of them.
        cores: How many processors this process and its children had meanwhile; None where the system does not say.
    """

    requests: list[Record]
    cores: float | None
