from dataclasses import dataclass, field

from schemas.stream import Speculation, Usage
from services.worker.engine import EngineStep, GenerationResult


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The measurements of one request.

    Attributes:
        due_ms: Planned start of the request, in milliseconds since the start of the ``OpenLoop`` or ``SampleLoop`` to
            which the request belongs. In a ``Repetition``, all requests start at once, and ``due_ms`` is always 0.
        steps: For each engine step with tokens: milliseconds since the request was due, and the number of tokens.
        total_ms: Milliseconds from when the request was due until it ended.
        usage: The engine's token counts; None if the request failed.
        speculation: Totals of speculative decoding; None if the engine does not report them.
        error: Why the request failed; None if it did not fail.
    """

    due_ms: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    total_ms: float = 0.0
    usage: Usage | None = None
    speculation: Speculation | None = None
    error: str | None = None

    def add(self, item: EngineStep | GenerationResult, now_ms: float) -> None:
        if isinstance(item, EngineStep):
            if item.tokens:
                self.steps.append((round(now_ms, 3), item.tokens))
        else:
            self.usage, self.speculation = item.usage, item.speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The measurements of one repetition of a closed loop. A repetition is a group of requests that start at once.

    Attributes:
        cores: Mean number of CPU cores that this process and its descendants kept busy; None if it cannot be measured.
    """

    requests: list[RequestRecord]
    cores: float | None
