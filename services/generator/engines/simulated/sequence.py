"""Generate one simulated answer step by step. All times are in milliseconds."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from schemas.stream import Speculation, Timings, Usage
from services.generator.engines.chat_completions.errors import classify
from services.generator.engines.simulated.fault_script import FaultScript
from services.worker.engine import EngineError, EngineStep, GenerationResult

OutputItem = EngineStep | GenerationResult | EngineError
"""One output of an execution. A ``GenerationResult`` or an ``EngineError`` is always the last one."""

WORDS: Final = (
    "river", "stone", "light", "harbour", "winter", "letter", "garden", "number", "signal", "window", "engine", "paper",
    "valley", "copper", "morning", "bridge", "orchard", "pencil", "shadow", "thread", "market", "island", "silver",
)  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class SimulatedSequence:
    """One simulated answer and its state.

    Attributes:
        prompt: Number of tokens of the prompt.
        length: Number of tokens that the answer will have when it is complete.
        truncated: Whether ``max_tokens`` made the answer shorter.
        batch: Whether the request is in the batch lane.
        held_until_ms: When the answer continues after a pause; infinite if it never continues.
        prefilled: Number of tokens that were prefilled since the sequence last got a slot.
        generated: Number of tokens of the answer so far.
        recomputed: Number of answer tokens that must be prefilled again after a preemption.
        drafted: Number of tokens drafted in all steps.
        first_ms: When the first token was generated.
        accepted: Entry j is the number of steps in which j drafted tokens were accepted.
    """

    prompt: int
    length: int
    truncated: bool
    rng: random.Random
    script: FaultScript
    arrived_ms: float
    batch: bool = False
    held_until_ms: float = 0.0
    prefilled: int = 0
    generated: int = 0
    recomputed: int = 0
    steps: int = 0
    drafted: int = 0
    admitted_ms: float = 0.0
    first_ms: float = 0.0
    accepted: Counter[int] = field(default_factory=Counter)

    @property
    def context(self) -> int:
        return self.prefilled + self.generated - self.recomputed

    @property
    def to_prefill(self) -> int:
        """Number of tokens to prefill before the next token is generated."""
        return self.prompt + self.recomputed - self.prefilled

    def displace(self) -> None:
        self.recomputed, self.prefilled = self.generated, 0

    def advance(self, gamma: int, alpha: float, now_ms: float) -> list[OutputItem]:
        """Run one step, and return its output.

        Args:
            gamma: Number of tokens drafted in this step.
            alpha: Probability that a drafted token is accepted.
            now_ms: When the step ends.
        """
        fault = _fault(self.script, self.steps)
        if fault is not None:
            return [fault]
        if self.steps == self.script.silent_from():
            self.held_until_ms = float("inf")
            return []
        accepted = _accepted(self.rng, alpha, min(gamma, self.length - self.generated - 1))
        self.steps += 1
        self.drafted += gamma
        if gamma:
            self.accepted[accepted] += 1
        if not self.generated:
            self.first_ms = now_ms
        step = EngineStep(text=self._words(accepted + 1), tokens=accepted + 1, drafted=gamma, accepted=accepted)
        self.generated += accepted + 1
        return [step, self._result(now_ms)] if self.generated >= self.length else [step]

    def _words(self, tokens: int) -> str:
        words = []
        for position in range(self.generated, self.generated + tokens):
            word = self.script.word(position) or self.rng.choice(WORDS)
            words.append(f"{word}. " if position % 12 == 11 else f"{word} ")
        return "".join(words)

    def _result(self, now_ms: float) -> GenerationResult:
        return GenerationResult(
            finish_reason="length" if self.truncated else "stop",
            usage=Usage(prompt_tokens=self.prompt, completion_tokens=self.generated),
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
                sum(times for count, times in accepted.items() if count > position) for position in range(most)
            ),
        )


def scripted_refusal(script: FaultScript) -> EngineError | None:
    if script.err is None:
        return None
    error_class, retryable = classify(script.err)
    return EngineError(error_class, f"the simulated engine answered {script.err}", retryable=retryable)


def _fault(script: FaultScript, steps: int) -> EngineError | None:
    if script.die == steps:
        return EngineError("unavailable", "the simulated answer failed", retryable=True)
    if script.dead == steps:
        return EngineError("engine_dead", "the simulated engine died", retryable=True)
    return None


def _accepted(rng: random.Random, alpha: float, most: int) -> int:
    accepted = 0
    while accepted < most and rng.random() < alpha:
        accepted += 1
    return accepted
