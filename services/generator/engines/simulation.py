"""Continuous batching on paper: which sequences share the next step, and how long it takes.

No I/O and no clock: time comes in as milliseconds. One step holds every sequence that decodes and, within a token
budget, parts of the prompts that are still to be read, first come first served.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from services.generator.engines.sequence import Item, Sequence
from services.physics.pairing import Pair
from services.physics.roofline import multiply_ms, prefill_ms, read_ms
from services.worker.engine import Step


class Said(NamedTuple):
    """What a step gave to a sequence."""

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
                    yield from self._heard(sequence, 0, now_ms)
        for sequence in plan.decodes:
            if id(sequence) in self._running:
                yield from self._heard(sequence, self._machine.gamma, now_ms)

    def _heard(self, sequence: Sequence, gamma: int, now_ms: float) -> Iterator[Said]:
        for item in sequence.speak(gamma, self._machine.alpha, now_ms):
            if not isinstance(item, Step):
                self.remove(sequence)
            yield Said(sequence, item)
