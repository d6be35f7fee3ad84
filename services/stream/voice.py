"""Decide which run is the voice, that is, the run whose text is shown."""

from dataclasses import dataclass

from schemas.stream import Cutover, Started
from services.stream.order import FirstRuns


@dataclass(slots=True)
class VoiceState:
    """Decides which run is the voice, that is, the run whose text is shown.

    A run is one execution of an attempt. If an attempt is executed again, only its first run can be the voice.

    Attributes:
        candidates: Numbers of the attempts whose runs may be shown. There are several while attempts race for the first
            token.
        has_spoken: Whether a candidate has sent a chunk. That attempt is then the only candidate.
        last_attempt: Number of the newest attempt.
        runs: The first run of each attempt.
        voice: The ``Started`` event of the voice; None if there is no voice yet.
    """

    candidates: frozenset[int]
    has_spoken: bool
    last_attempt: int
    runs: FirstRuns
    voice: Started | None = None  # stored because it is read for every chunk

    @classmethod
    def initial(cls) -> "VoiceState":
        return cls(candidates=frozenset({1}), has_spoken=False, last_attempt=1, runs=FirstRuns())

    def register(self, started: Started) -> bool:
        is_first = self.runs.register(started)
        self._find_voice()
        return is_first

    def may_speak(self, attempt: int, run: str) -> bool:
        return attempt in self.candidates and self.runs.is_first(attempt, run)

    def decide(self, attempt: int) -> None:
        """Drop all candidates except ``attempt``, which has sent its first chunk."""
        self.candidates = frozenset({attempt})
        self.has_spoken = True
        self._find_voice()

    def drop(self, attempt: int) -> None:
        """Remove an attempt from the candidates, because it ended without text. Keep it if it is the only one."""
        if not self.has_spoken and len(self.candidates) > 1:
            self.candidates -= {attempt}
            self._find_voice()

    def effective(self, cutover: Cutover, last_seq: int) -> bool:
        if cutover.attempt != self.last_attempt + 1:
            return False
        if cutover.trigger == "ttft":
            return not self.has_spoken
        if cutover.trigger == "stall":
            return last_seq <= cutover.seen_seq
        return True

    def hand_over(self, cutover: Cutover) -> None:
        """Make the cutover's attempt a candidate for the voice.

        The other candidates remain if the attempts race for the first token. Otherwise, they are removed.
        """
        self.last_attempt = cutover.attempt
        racing = cutover.how == "race" and cutover.trigger == "ttft"
        self.candidates = self.candidates | {cutover.attempt} if racing else frozenset({cutover.attempt})
        self.has_spoken = False
        self._find_voice()

    def _find_voice(self) -> None:
        attempts = self.candidates
        self.voice = self.runs.by_attempt.get(next(iter(attempts))) if len(attempts) == 1 else None
