"""Continuous batching on paper: which sequences share the next step, how long it takes, what each of them says.

No I/O and no clock: time comes in as milliseconds. One step holds every sequence that decodes
and, within a token budget, parts of the prompts that are still to be read, first come first served.
"""

import contextlib
import random
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.stream import Speculation, Timings, Usage
from services.generator.engine import Done, EngineError, Step
from services.generator.engines.refusals import classify
from services.generator.engines.script import Script
from services.physics.pairing import Pair
from services.physics.roofline import multiply_ms, prefill_ms, read_ms

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


Item = Step | Done | EngineError


class Said(NamedTuple):
    """What a step gave to a sequence. Anything but ``Step`` is its last."""

    sequence: Sequence
    item: Item


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: who decodes, who reads how much of its prompt, and how long it takes."""

    decodes: tuple[Sequence, ...]
    prefills: tuple[tuple[Sequence, int], ...]
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is simulated.

    Attributes:
        pair: Models and accelerator.
        gamma: Tokens drafted; 0 turns speculation off.
        alpha: Chance that a drafted token is accepted.
        batch: Most sequences in a step.
        budget: Most prompt tokens in a step.
        scale: Time a step takes over what the physics says.
    """

    pair: Pair
    gamma: int
    alpha: float
    batch: int
    budget: int
    scale: float = 1.0

    def step_ms(self, decodes: int, context: int, prefills: list[tuple[Sequence, int]]) -> float:
        """Milliseconds of a step: draft steps, then one pass of the target over everything, then the overhead."""
        pair, on = self.pair, self.pair.gpu
        arithmetic = multiply_ms(
            pair.target, on, pair.precision,
            tokens=decodes * (self.gamma + 1), context=context, efficiency=pair.efficiency,
        )  # fmt: skip
        for sequence, tokens in prefills:
            arithmetic += prefill_ms(
                pair.target, on, pair.precision, tokens, cached=sequence.read, efficiency=pair.efficiency
            )
        reading = read_ms(pair.target, on, pair.precision, batch=decodes, context=context, efficiency=pair.efficiency)
        drafting = 0.0
        if self.gamma and decodes:
            drafting = self.gamma * pair.draft_ms(batch=decodes, context=context) + pair.overhead * reading
        return (max(reading, arithmetic) + drafting) * self.scale


class Scheduler:
    """The queue before the machine and the batch on it. At most ``machine.batch`` sequences are admitted."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}

    @property
    def running(self) -> int:
        """Sequences admitted."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences not admitted yet."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """A sequence comes."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence is not wanted any more; one that ended already is left alone."""
        if self._running.pop(id(sequence), None) is None:
            with contextlib.suppress(ValueError):
                self._waiting.remove(sequence)

    def plan(self, now_ms: float) -> Plan | None:
        """The next step; None when no sequence can take part now."""
        machine = self._machine
        while self._waiting and len(self._running) < machine.batch:
            sequence = self._waiting.popleft()
            sequence.admitted_ms = now_ms
            sequence.held_until_ms = now_ms + sequence.script.delay_ms(sequence.draw)
            self._running[id(sequence)] = sequence
        active = [each for each in self._running.values() if each.held_until_ms <= now_ms]
        decodes = tuple(each for each in active if each.read >= each.prompt)
        prefills: list[tuple[Sequence, int]] = []
        budget = machine.budget
        for each in active:
            if each.read < each.prompt and budget > 0:
                tokens = min(budget, each.prompt - each.read)
                prefills.append((each, tokens))
                budget -= tokens
        if not decodes and not prefills:
            return None
        context = sum(each.context for each in decodes) // len(decodes) if decodes else 0
        return Plan(decodes, tuple(prefills), machine.step_ms(len(decodes), context, prefills))

    def wake_ms(self) -> float | None:
        """When a held sequence may go on, if nothing else happens before; None when none ever will."""
        held = [each.held_until_ms for each in self._running.values() if each.held_until_ms != float("inf")]
        return min(held, default=None)

    def complete(self, plan: Plan, now_ms: float) -> Iterator[Said]:
        """The step is over: what it gave to each sequence that is still wanted."""
        for sequence, tokens in plan.prefills:
            if id(sequence) in self._running:
                sequence.read += tokens
                if sequence.read >= sequence.prompt:
                    yield from self._say(sequence, 0, now_ms)
        for sequence in plan.decodes:
            if id(sequence) in self._running:
                yield from self._say(sequence, self._machine.gamma, now_ms)

    def _say(self, sequence: Sequence, gamma: int, now_ms: float) -> Iterator[Said]:
        """One step of a sequence; the step that ends the prompt says one token, undrafted."""
        ended = _fault(sequence.script, sequence.steps)
        if ended is not None:
            self.remove(sequence)
            yield Said(sequence, ended)
            return
        if sequence.steps == sequence.script.silent_from():
            sequence.held_until_ms = float("inf")
            return
        accepted = _accepted(sequence.draw, self._machine.alpha, min(gamma, sequence.length - sequence.said - 1))
        sequence.steps += 1
        sequence.drafted += gamma
        if gamma:
            sequence.accepted[accepted] += 1
        if not sequence.said:
            sequence.first_ms = now_ms
        text = _words(sequence, accepted + 1)
        sequence.said += accepted + 1
        yield Said(sequence, Step(text=text, tokens=accepted + 1, drafted=gamma, accepted=accepted))
        if sequence.said >= sequence.length:
            self.remove(sequence)
            yield Said(sequence, _done(sequence, self._machine.gamma, now_ms))


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


def _words(sequence: Sequence, tokens: int) -> str:
    words = []
    for place in range(sequence.said, sequence.said + tokens):
        word = "FORBIDDEN" if place == sequence.script.poison else sequence.draw.choice(WORDS)
        words.append(f"{word}. " if place % 12 == 11 else f"{word} ")
    return "".join(words)


def _done(sequence: Sequence, gamma: int, now_ms: float) -> Done:
    accepted = sequence.accepted
    speculation = Speculation(
        steps=sum(accepted.values()),
        drafted=sequence.drafted,
        accepted=sum(count * times for count, times in accepted.items()),
        accepted_by_position=tuple(
            sum(times for count, times in accepted.items() if count > place) for place in range(gamma)
        ),
    )
    return Done(
        finish_reason="length" if sequence.cut else "stop",
        usage=Usage(prompt_tokens=sequence.prompt, completion_tokens=sequence.said),
        timings=Timings(
            queue_ms=sequence.admitted_ms - sequence.arrived_ms,
            prefill_ms=sequence.first_ms - sequence.admitted_ms,
            decode_ms=now_ms - sequence.first_ms,
        ),
        speculation=speculation if gamma else None,
    )
