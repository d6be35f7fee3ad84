"""Whose words count: one (attempt, run) at a time."""

from dataclasses import dataclass

from schemas.stream import Cutover, Started
from services.stream.order import FirstRuns


@dataclass(slots=True)
class Floor:
    """The attempts that may speak, and which of them has spoken.

    ``candidates`` holds one attempt, or several while a race is undecided. ``heard`` is set by the first chunk in
    the log that a candidate's run says; from then on it is the only candidate.
    """

    candidates: frozenset[int]
    heard: bool
    last_attempt: int
    runs: FirstRuns

    @classmethod
    def at_start(cls) -> "Floor":
        """Attempt 1 has the floor."""
        return cls(candidates=frozenset({1}), heard=False, last_attempt=1, runs=FirstRuns())

    @property
    def voice(self) -> Started | None:
        """The execution that is heard; None before it started or while a race is undecided."""
        if len(self.candidates) != 1:
            return None
        (attempt,) = self.candidates
        return self.runs.by_attempt.get(attempt)

    def speaks(self, attempt: int, run: str) -> bool:
        """Whether this execution may be heard."""
        return attempt in self.candidates and self.runs.is_heard(attempt, run)

    def settle(self, attempt: int) -> None:
        """The first chunk decides."""
        self.candidates = frozenset({attempt})
        self.heard = True

    def drop(self, attempt: int) -> None:
        """A candidate came to its end without a word; the others go on. The last one keeps the floor."""
        if not self.heard and len(self.candidates) > 1:
            self.candidates -= {attempt}

    def effective(self, cutover: Cutover, last_seq: int) -> bool:
        """Whether the cutover counts: the next attempt in turn, and its reason still true at its place in the log."""
        if cutover.attempt != self.last_attempt + 1:
            return False
        if cutover.trigger == "ttft":
            return not self.heard
        if cutover.trigger == "stall":
            return last_seq <= cutover.seen_seq
        return True

    def hand_over(self, cutover: Cutover) -> None:
        """Give the floor to the next attempt, or let it join a race."""
        self.last_attempt = cutover.attempt
        racing = cutover.how == "race" and cutover.trigger == "ttft"
        self.candidates = self.candidates | {cutover.attempt} if racing else frozenset({cutover.attempt})
        self.heard = False
