"""Continuous batching on paper: which sequences share the next step, and how long it takes.

No I/O and no clock: time comes in as milliseconds. One step holds every sequence that decodes and, within a token
budget, parts of the prompts that are still to be read, first come first served.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.generator.engines.sequence import Item, Sequence
from services.physics.adaptive import Acceptance, choose_gamma
from services.physics.pairing import Pair
from services.physics.roofline import multiply_ms, prefill_ms, read_ms
from services.worker.engine import Step

EXPECTED_ALPHA: Final = 0.6
"""Of a draft that nobody has seen yet: the middle of what was published for the nearest pairs (42-81 %)."""


class Said(NamedTuple):
    """What a step gave to a sequence."""

    sequence: Sequence
    item: Item


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: who decodes, who reads how much of its prompt, how many tokens are drafted, how long it takes."""

    decodes: tuple[Sequence, ...]
    prefills: tuple[tuple[Sequence, int], ...]
    gamma: int
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is simulated.

    Attributes:
        pair: Models and accelerator.
        gamma: Tokens drafted, at most when they are chosen; 0 turns speculation off.
        adaptive: Each step drafts what load and measured acceptance make worth while, up to ``gamma``.
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
    adaptive: bool = False

    def step_ms(self, decodes: int, context: int, prefills: list[tuple[Sequence, int]], gamma: int) -> float:
        """Milliseconds of a step: draft steps, then one pass of the target over everything, then the overhead."""
        pair, on = self.pair, self.pair.gpu
        arithmetic = multiply_ms(
            pair.target, on, pair.precision,
            tokens=decodes * (gamma + 1), context=context, efficiency=pair.efficiency,
        )  # fmt: skip
        for sequence, tokens in prefills:
            arithmetic += prefill_ms(
                pair.target, on, pair.precision, tokens, cached=sequence.read, efficiency=pair.efficiency
            )
        reading = read_ms(pair.target, on, pair.precision, batch=decodes, context=context, efficiency=pair.efficiency)
        drafting = 0.0
        if gamma and decodes:
            drafting = gamma * pair.draft_ms(batch=decodes, context=context) + pair.overhead * reading
        return (max(reading, arithmetic) + drafting) * self.scale


class Scheduler:
    """The queue before the machine and the batch on it. At most ``machine.batch`` sequences are admitted."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: deque[Sequence] = deque()
        self._running: dict[int, Sequence] = {}
        self._seen = Acceptance.expected(EXPECTED_ALPHA)
        self._idle = 0

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
        gamma = self._gamma(len(decodes), context)
        return Plan(decodes, tuple(prefills), gamma, machine.step_ms(len(decodes), context, prefills, gamma))

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
                    yield from self._heard(sequence, 0, now_ms)
        self._idle = 0 if plan.gamma else self._idle + 1
        for sequence in plan.decodes:
            if id(sequence) in self._running:
                yield from self._heard(sequence, plan.gamma, now_ms)

    def _gamma(self, decodes: int, context: int) -> int:
        machine = self._machine
        if not (machine.adaptive and machine.gamma and decodes):
            return machine.gamma
        return choose_gamma(
            machine.pair, self._seen, batch=decodes, context=context, most=machine.gamma, idle_steps=self._idle
        )

    def _heard(self, sequence: Sequence, gamma: int, now_ms: float) -> Iterator[Said]:
        for item in sequence.speak(gamma, self._machine.alpha, now_ms):
            if not isinstance(item, Step):
                self.remove(sequence)
            elif item.drafted and sequence.said < sequence.length:  # the last step is cut by the answer's end
                self._seen = self._seen.after(item.drafted, item.accepted)
            yield Said(sequence, item)
