from dataclasses import dataclass
from typing import Final

from schemas.stream import Outcome
from services.stream import Close, Op, Show

EXIT_COMPLETED: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_WITHHELD: Final = 3

_EXIT_CODES: Final[dict[Outcome, int]] = {
    "completed": EXIT_COMPLETED,
    "denied": EXIT_WITHHELD,
    "recalled": EXIT_WITHHELD,
    "failed": EXIT_FAILED,
    "expired": EXIT_FAILED,
    "cancelled": EXIT_FAILED,
    "rejected": EXIT_FAILED,
}


@dataclass(slots=True, kw_only=True)
class AnswerSummary:
    """Outcome, times and tokens of one answer, updated with each op. All times are in seconds of a monotonic clock.

    Attributes:
        first_at: Time at which the first text was received; None until then.
        first_tokens: Number of tokens in the first op that had text.
        close: The op that ended the answer; None until it was received.
    """

    asked_at: float
    request_id: str = ""
    first_at: float | None = None
    last_at: float = 0.0
    first_tokens: int = 0
    tokens: int = 0
    close: Close | None = None

    def take(self, op: Op, now: float) -> None:
        if isinstance(op, Close):
            self.close = op
        elif isinstance(op, Show):
            if self.first_at is None:
                self.first_at, self.first_tokens = now, op.tokens
            self.last_at = now
            self.tokens += op.tokens

    @property
    def exit_code(self) -> int:
        """0 if the answer completed, 3 if it was denied or withdrawn as a whole, else 1."""
        return EXIT_FAILED if self.close is None else _EXIT_CODES[self.close.outcome]

    def closing_line(self) -> str:
        parts: list[str] = ["no end was received" if self.close is None else self.close.outcome]
        if self.close is not None and self.close.outcome != "completed" and self.close.reason:
            parts.append(self.close.reason)
        if self.first_at is not None:
            parts.append(f"first token after {(self.first_at - self.asked_at) * 1000:.0f} ms")
            parts.append(f"{self.tokens} tokens{self._speed()}")
        if self.request_id:
            parts.append(f"request {self.request_id}")
        return ", ".join(parts)

    def _speed(self) -> str:
        if self.first_at is None or self.last_at <= self.first_at:
            return ""
        return f" at {(self.tokens - self.first_tokens) / (self.last_at - self.first_at):.1f}/s"
