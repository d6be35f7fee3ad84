"""The state of a line of a job, until the line has a result."""

from dataclasses import dataclass, field
from typing import Final, Literal

from schemas.stream import Closed, Failed, Outcome, StreamEvent
from services.jobs.result_lines import LineAnswer, LineError, LineResult
from services.stream import Screen

RETRY_OUTCOMES: Final[frozenset[Outcome]] = frozenset({"failed", "expired", "cancelled", "rejected"})
"""Outcomes after which another request for the line may succeed, unless the engine reported a permanent error."""

CROWDED_CAUSES: Final = frozenset({"deadline", "no_verdict", "no_first_token", "too_many_open", "stalled"})
"""Causes that indicate too many unfinished requests. If a request is closed for one of them, the window shrinks."""

_CODES: Final[dict[Outcome, str]] = {
    "denied": "denied", "recalled": "recalled", "failed": "failed", "expired": "expired", "cancelled": "cancelled",
    "rejected": "rejected",
}  # fmt: skip

_SENTENCES: Final[dict[Outcome, str]] = {
    "denied": "The policy denied the prompt.",
    "recalled": "The policy withdrew the answer.",
    "failed": "No attempt gave an answer.",
    "expired": "The answer was not complete at the request's deadline.",
    "cancelled": "The request was cancelled.",
    "rejected": "The request could not be read.",
}


@dataclass(slots=True)
class LineAttempt:
    """One request that was submitted for a line.

    Attributes:
        screen: The text that a client may see, computed from the events of the request.
        stream_offset: Lower bound of the offsets of the request's events in ``railbus.streams``.
        request_offset: Lower bound of the request's offset in ``railbus.requests.batch``.
        submitted_us: Time at which the request's timeout starts, in microseconds since the epoch: the submission of the
            request, or the recovery of the job if this came later.
        on_log: Whether the request is known to be in Kafka.
        failure: The newest ``Failed`` event of the request; None if there is none.
        folded_offset: Offset of the newest event that was applied; -1 before the first event.
    """

    screen: Screen
    stream_offset: int
    request_offset: int
    submitted_us: int
    on_log: bool = False
    failure: Failed | None = None
    folded_offset: int = -1

    def feed(self, event: StreamEvent, offset: int, log_ms: int) -> bool:
        """Apply an event. Return whether it closed the request."""
        if offset <= self.folded_offset:
            return False  # folded already: a takeover reads from an earlier offset
        self.folded_offset = offset
        if isinstance(event, Failed):
            self.failure = event
        open_before = self.screen.closed is None
        self.screen.feed(event, log_ms)
        return open_before and self.screen.closed is not None

    @property
    def closed(self) -> Closed | None:
        return self.screen.closed


@dataclass(slots=True)
class LineState:
    """The state of a line that has no result yet.

    Attributes:
        attempts: The requests that were submitted for the line, by number: 1 is the first request, 2 its repetition.
        retry_us: When the next request must be submitted; None while a request is open.
    """

    attempts: dict[int, LineAttempt] = field(default_factory=dict)
    retry_us: int | None = None

    @property
    def newest(self) -> int:
        return max(self.attempts)


Decision = Literal["open", "done", "retry"]


def decide(line: LineState, most_attempts: int, *, ending: bool) -> tuple[Decision, int, LineResult | None]:
    """Decide whether a line is still ``open``, is ``done``, or needs another request (``retry``).

    With ``ending``, no line is retried.

    Returns:
        The decision, the number of the request on which it is based (0 if the line has no request yet), and the line's
        result if the line is done.
    """
    for number in sorted(line.attempts):
        attempt = line.attempts[number]
        if attempt.closed is None:
            return "open", number, None
        result = result_of(attempt, attempt.closed)
        if isinstance(result, LineAnswer) or not may_retry(attempt, attempt.closed):
            return "done", number, result
        if number + 1 in line.attempts:
            continue
        if ending or number >= most_attempts:
            return "done", number, result
        return "retry", number, None
    return "open", 0, None


def may_retry(attempt: LineAttempt, closed: Closed) -> bool:
    if closed.outcome not in RETRY_OUTCOMES:
        return False
    return attempt.failure is None or attempt.failure.retryable or closed.cause in CROWDED_CAUSES


def result_of(attempt: LineAttempt, closed: Closed) -> LineResult:
    """Return the result of a closed request: its answer if it was completed, else an error."""
    screen, failure = attempt.screen, attempt.failure
    if closed.outcome == "completed" and screen.finished is not None and screen.voice is not None:
        return LineAnswer(
            text=screen.visible, model=screen.voice.model, finish_reason=screen.finished.finish_reason,
            usage=screen.finished.usage,
        )  # fmt: skip
    outcome: Outcome = "failed" if closed.outcome == "completed" else closed.outcome
    if outcome == "failed" and failure is not None:
        return LineError(code=failure.error_class, message=failure.message or _SENTENCES[outcome], param=failure.param)
    return LineError(code=_CODES[outcome], message=closed.reason or _SENTENCES[outcome])
