"""What became of a question: exit code, speed, one closing line. Pure; times are arguments."""

from dataclasses import dataclass
from typing import Final

from schemas.stream import Outcome
from services.stream import Close, Op, Show

COMPLETED: Final = 0
FAILED: Final = 1
USAGE: Final = 2
TAKEN_BACK: Final = 3

_EXIT_CODES: Final[dict[Outcome, int]] = {
    "completed": COMPLETED,
    "denied": TAKEN_BACK,
    "recalled": TAKEN_BACK,
    "failed": FAILED,
    "expired": FAILED,
    "cancelled": FAILED,
    "rejected": FAILED,
}


@dataclass(slots=True, kw_only=True)
class Result:
    """Filled op by op.

    Attributes:
        asked_at: When the question was sent, in seconds of any clock.
        request_id: Its id, once it is known.
        first_at: When the first text came.
        last_at: When the last text came.
        first_tokens: Tokens that came with the first text.
        tokens: All tokens that came.
        close: How it ended.
    """

    asked_at: float
    request_id: str = ""
    first_at: float | None = None
    last_at: float = 0.0
    first_tokens: int = 0
    tokens: int = 0
    close: Close | None = None

    def take(self, op: Op, now: float) -> None:
        """Counts an op that came at ``now``."""
        if isinstance(op, Close):
            self.close = op
        elif isinstance(op, Show):
            if self.first_at is None:
                self.first_at, self.first_tokens = now, op.tokens
            self.last_at = now
            self.tokens += op.tokens

    @property
    def exit_code(self) -> int:
        """0 completed, 3 denied or recalled, 1 anything else."""
        return FAILED if self.close is None else _EXIT_CODES[self.close.outcome]

    def line(self) -> str:
        """One line for people: outcome, time to first token, speed."""
        parts: list[str] = ["no end was read" if self.close is None else self.close.outcome]
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
