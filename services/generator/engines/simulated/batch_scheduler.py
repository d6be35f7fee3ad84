"""Simulate continuous batching: choose the sequences of each step, and compute how long the step takes."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.generator.engines.simulated.sequence import OutputItem, SimulatedSequence
from services.physics.adaptive import AcceptanceEstimate, choose_gamma
from services.physics.pairing import SpeculationPair
from services.physics.roofline import prefill_flop, step_ms
from services.worker.engine import EngineStep

EXPECTED_ALPHA: Final = 0.6
"""Acceptance rate that is assumed before one is measured. It is in the middle of the published values for similar pairs
of models (42-81 %)."""


class StepOutput(NamedTuple):
    sequence: SimulatedSequence
    item: OutputItem


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step.

    Attributes:
        decodes: The sequences that generate tokens.
        prefills: The sequences whose prompts are processed, each with its number of prompt tokens in this step.
        gamma: Number of tokens drafted for each decoding sequence.
    """

    decodes: tuple[SimulatedSequence, ...]
    prefills: tuple[tuple[SimulatedSequence, int], ...]
    gamma: int
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The simulated hardware and models, and the limits of a step.

    Attributes:
        pair: The target model and the draft model, on one GPU.
        gamma: Number of tokens drafted for each sequence in a step; 0 turns speculation off. If ``adaptive`` is true,
            this is the maximum.
        adaptive: Whether the number of drafted tokens is chosen for each step from load and measured acceptance.
        alpha: Probability that a drafted token is accepted.
        batch: Maximum number of sequences in a step.
        budget: Maximum number of prompt tokens in a step.
        scale: Factor by which the duration of each step is multiplied.
    """

    pair: SpeculationPair
    gamma: int
    alpha: float
    batch: int
    budget: int
    scale: float = 1.0
    adaptive: bool = False

    def step_ms(self, decodes: int, context: int, prefills: list[tuple[SimulatedSequence, int]], gamma: int) -> float:
        """Return the duration of a step in milliseconds.

        Args:
            decodes: Number of decoding sequences.
            context: Mean number of tokens in the KV caches of these sequences.
            prefills: The sequences that prefill, each with its number of prompt tokens in this step.
            gamma: Number of tokens drafted for each decoding sequence.
        """
        pair = self.pair
        step = step_ms(
            pair.target,
            pair.gpu,
            pair.precision,
            batch=decodes,
            context=context,
            positions=gamma + 1,
            prefill_flop=sum(prefill_flop(pair.target, tokens, cached=each.prefilled) for each, tokens in prefills),
            prefill_tokens=sum(tokens for _, tokens in prefills),
            kv=pair.kv,
            efficiency=pair.achieved,
        )
        if gamma and decodes:
            plain = pair.step_ms(batch=decodes, context=context)
            step += gamma * pair.draft_ms(batch=decodes, context=context) + pair.overhead * plain
        return step * self.scale


class BatchScheduler:
    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._waiting: deque[SimulatedSequence] = deque()
        self._waiting_batch: deque[SimulatedSequence] = deque()
        self._running: dict[int, SimulatedSequence] = {}
        self._acceptance = AcceptanceEstimate.expected(EXPECTED_ALPHA)
        self._idle_steps = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._waiting_batch)

    def add(self, sequence: SimulatedSequence) -> None:
        self._queue_of(sequence).append(sequence)

    def remove(self, sequence: SimulatedSequence) -> None:
        """Remove a sequence. Do nothing if it has already ended."""
        if self._running.pop(id(sequence), None) is None:
            queue = self._queue_of(sequence)
            if sequence in queue:
                queue.remove(sequence)

    def plan(self, now_ms: float) -> StepPlan | None:
        """Admit waiting sequences, and return the next step; None if there is no sequence to run now."""
        cost = self._cost
        while self._waiting and (len(self._running) < cost.batch or self._displace()):
            self._admit(self._waiting.popleft(), now_ms)
        while self._waiting_batch and len(self._running) < cost.batch:
            self._admit(self._waiting_batch.popleft(), now_ms)
        active = [each for each in self._running.values() if each.held_until_ms <= now_ms]
        active.sort(key=lambda each: each.batch)  # interactive sequences first; each lane in order of admission
        decodes = tuple(each for each in active if each.to_prefill <= 0)
        prefills: list[tuple[SimulatedSequence, int]] = []
        budget = cost.budget
        for each in active:
            if each.to_prefill > 0 and budget > 0:
                tokens = min(budget, each.to_prefill)
                prefills.append((each, tokens))
                budget -= tokens
        if not decodes and not prefills:
            return None
        context = sum(each.context for each in decodes) // len(decodes) if decodes else 0
        gamma = self._gamma(len(decodes), context)
        return StepPlan(decodes, tuple(prefills), gamma, cost.step_ms(len(decodes), context, prefills, gamma))

    def wake_ms(self) -> float | None:
        """Return when the first paused sequence continues, in milliseconds; None if no sequence will continue."""
        held = [each.held_until_ms for each in self._running.values() if each.held_until_ms != float("inf")]
        return min(held, default=None)

    def complete(self, plan: StepPlan, now_ms: float) -> Iterator[StepOutput]:
        """Update the sequences at the end of a step, and yield what each of them generated."""
        for sequence, tokens in plan.prefills:
            if id(sequence) in self._running:
                sequence.prefilled += tokens
                if sequence.to_prefill <= 0:
                    yield from self._advance(sequence, 0, now_ms)
        self._idle_steps = 0 if plan.gamma else self._idle_steps + 1
        for sequence in plan.decodes:
            if id(sequence) in self._running:
                yield from self._advance(sequence, plan.gamma, now_ms)

    def _queue_of(self, sequence: SimulatedSequence) -> deque[SimulatedSequence]:
        return self._waiting_batch if sequence.batch else self._waiting

    def _admit(self, sequence: SimulatedSequence, now_ms: float) -> None:
        if not sequence.recomputed:  # a displaced sequence has already had its scripted delay
            sequence.admitted_ms = now_ms
            sequence.held_until_ms = now_ms + sequence.script.delay_ms(sequence.rng)
        self._running[id(sequence)] = sequence

    def _displace(self) -> bool:
        newest = next((each for each in reversed(self._running.values()) if each.batch), None)
        if newest is None:
            return False
        del self._running[id(newest)]
        newest.displace()
        self._waiting_batch.appendleft(newest)
        return True

    def _gamma(self, decodes: int, context: int) -> int:
        cost = self._cost
        if not (cost.adaptive and cost.gamma and decodes):
            return cost.gamma
        return choose_gamma(
            cost.pair,
            self._acceptance,
            batch=decodes,
            context=context,
            max_gamma=cost.gamma,
            idle_steps=self._idle_steps,
        )

    def _advance(self, sequence: SimulatedSequence, gamma: int, now_ms: float) -> Iterator[StepOutput]:
        for item in sequence.advance(gamma, self._cost.alpha, now_ms):
            if not isinstance(item, EngineStep):
                self.remove(sequence)
            elif item.drafted and sequence.generated < sequence.length:
                # The last step of an answer is not counted, because the end of the answer truncates it.
                self._acceptance = self._acceptance.after(item.drafted, item.accepted)
            yield StepOutput(sequence, item)
