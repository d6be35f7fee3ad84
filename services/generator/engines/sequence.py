"""One simulated answer: what it says step by step, and how it ends. No I/O, no clock; times are milliseconds."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from schemas.stream import Speculation, Timings, Usage
from services.generator.engines.refusals import classify
from services.generator.engines.script import Script
from services.worker.engine import Done, EngineError, Step

Item = Step | Done | EngineError
"""What an execution is given; anything but ``Step`` is its last."""

WORDS: Final = (
    "river", "stone", "light", "harbour", "winter", "letter", "garden", "number", "signal", "window", "engine", "paper",
    "valley", "copper", "morning", "bridge", "orchard", "pencil", "shadow", "thread", "market", "island", "silver",
)  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One answer on its way.

    Attributes:
        prompt: Tokens of prompt.
        length: Tokens it will say.
        cut: It ends because of ``max_tokens``.
        draw: Its own randomness.
        script: What it is made to do.
        arrived_ms: When it came.
        held_until_ms: It takes no part in steps before.
    """

    prompt: int
    length: int
    cut: bool
    draw: random.Random
    script: Script
    arrived_ms: float
    held_until_ms: float = 0.0
    read: int = 0
    said: int = 0
    steps: int = 0
    drafted: int = 0
    admitted_ms: float = 0.0
    first_ms: float = 0.0
    accepted: Counter[int] = field(default_factory=Counter)

    @property
    def context(self) -> int:
        """Tokens in its cache."""
        return self.read + self.said

    def speak(self, gamma: int, alpha: float, now_ms: float) -> list[Item]:
        """One step: what it says, and how it ended if it did.

        Args:
            gamma: Tokens drafted in this step; 0 in the step that ends the prompt.
            alpha: Chance that a drafted token is accepted.
            now_ms: When the step is over.
        """
        fault = _fault(self.script, self.steps)
        if fault is not None:
            return [fault]
        if self.steps == self.script.silent_from():
            self.held_until_ms = float("inf")
            return []
        accepted = _accepted(self.draw, alpha, min(gamma, self.length - self.said - 1))
        self.steps += 1
        self.drafted += gamma
        if gamma:
            self.accepted[accepted] += 1
        if not self.said:
            self.first_ms = now_ms
        step = Step(text=self._words(accepted + 1), tokens=accepted + 1, drafted=gamma, accepted=accepted)
        self.said += accepted + 1
        return [step, self._done(now_ms)] if self.said >= self.length else [step]

    def _words(self, tokens: int) -> str:
        words = []
        for place in range(self.said, self.said + tokens):
            word = self.script.word(place) or self.draw.choice(WORDS)
            words.append(f"{word}. " if place % 12 == 11 else f"{word} ")
        return "".join(words)

    def _done(self, now_ms: float) -> Done:
        return Done(
            finish_reason="length" if self.cut else "stop",
            usage=Usage(prompt_tokens=self.prompt, completion_tokens=self.said),
            timings=Timings(
                queue_ms=self.admitted_ms - self.arrived_ms,
                prefill_ms=self.first_ms - self.admitted_ms,
                decode_ms=now_ms - self.first_ms,
            ),
            speculation=self._speculation() if self.drafted else None,
        )

    def _speculation(self) -> Speculation:
        accepted, most = self.accepted, max(self.accepted)
        return Speculation(
            steps=sum(accepted.values()),
            drafted=self.drafted,
            accepted=sum(count * times for count, times in accepted.items()),
            accepted_by_position=tuple(
                sum(times for count, times in accepted.items() if count > place) for place in range(most)
            ),
        )


def refuse(script: Script) -> EngineError | None:
    """The refusal a script asks for, before anything runs."""
    if script.err is None:
        return None
    error_class, retryable = classify(script.err)
    return EngineError(error_class, f"the simulated engine answered {script.err}", retryable=retryable)


def _fault(script: Script, steps: int) -> EngineError | None:
    if script.die == steps:
        return EngineError("unavailable", "the simulated engine broke off", retryable=True)
    if script.dead == steps:
        return EngineError("engine_dead", "the simulated engine died", retryable=True)
    return None


def _accepted(draw: random.Random, alpha: float, most: int) -> int:
    """Drafts accepted in a row, each with chance alpha."""
    accepted = 0
    while accepted < most and draw.random() < alpha:
        accepted += 1
    return accepted
