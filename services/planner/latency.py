"""The latency plan: each part of the budget, what drafting buys, what a deadline admits, who pays for governance.

Pure; times in milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.physics.adaptive import Band, gamma_by_batch
from services.physics.deadlines import highest_utilisation, longest_prompt, mean_wait_ms, response_variation
from services.physics.governance import governed_start, hidden_fraction
from services.physics.roofline import FLOOR, PRACTICAL, Efficiency, compute_bound_tokens, prefill_ms
from services.physics.speculation import best_gamma, largest_gamma_in_budget
from services.planner.question import Question

ALPHAS: Final = (0.6, 0.7, 0.8, 0.9)
LAUNCHES: Final = 0.04
"""What kernel launches add to the draft's cost, about: 0.16 by bytes becomes 0.20."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the budget: no engine is faster than ``floor``; ``drafted`` is ``practical`` with speculation."""

    name: str
    floor: float
    practical: float
    drafted: float
    note: str = ""
    first: bool = True  # it is over before the first token is seen


@dataclass(frozen=True, slots=True)
class Choice:
    """The best gamma at an alpha and a draft cost."""

    alpha: float
    draft_cost: float
    gamma: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """What the rails cost, and what hides it.

    Attributes:
        rails_ms: How long they take.
        hidden: The share of it that queue and prefill hide.
        seen_ms: What is left, before the first token.
        returned_ms: What speculation gives back by the last token; none of it before the first.
        hidden_from: Uncached prompt tokens from which the rails are wholly hidden.
        paid: Nothing of it is seen.
    """

    rails_ms: float
    hidden: float
    seen_ms: float
    returned_ms: float
    hidden_from: int

    @property
    def paid(self) -> bool:
        """Whether nobody waits for the rails."""
        return self.seen_ms == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """What a deadline for the first token admits.

    Attributes:
        ttft_ms: The deadline.
        prefill_ms: What of it is left for the prefill on an idle engine.
        longest: Uncached prompt tokens that meet it, practically.
        longest_floor: The same for an engine at the floor.
        utilisation: The load at which 99 % of requests like this one meet it; 0 when none does.
        variation: Standard deviation over mean of queue and prefill at the load that was asked about.
    """

    ttft_ms: float
    prefill_ms: float
    longest: int
    longest_floor: int
    utilisation: float
    variation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer.

    Attributes:
        parts: The budget, in the order of time.
        gamma: Tokens to draft here; 0 when drafting does not pay.
        speedup: Tokens a second with it over without.
        draft_cost: c, a draft step over a target step.
        budget_gamma: The largest gamma that the drafting budget admits: a floor, no target.
        choices: The best gamma by alpha.
        bands: The best gamma by batch.
        idle_cost: What a step in the first band of 0 takes more than without a draft, as a share: vLLM's draft model
            reads along there, so that its cache is whole when it drafts again. None without such a band, or any other.
        free_until: Batch up to which verifying costs no more than a plain step.
        deadline: What it admits.
        governance: Who pays.
    """

    parts: tuple[Part, ...]
    gamma: int
    speedup: float
    draft_cost: float | None
    budget_gamma: int
    choices: tuple[Choice, ...]
    bands: tuple[Band, ...]
    idle_cost: float | None
    free_until: int
    deadline: Deadline
    governance: Governance

    def total(self, column: str, *, first: bool) -> float:
        """Milliseconds to the first or to the last token; the column is ``floor``, ``practical`` or ``drafted``."""
        return sum((float(getattr(part, column)) for part in self.parts if part.first or not first), 0.0)


def plan(question: Question) -> Plan:
    """The plan."""
    pair, around = question.pair, question.around
    practical = _prefill(question, PRACTICAL)
    queue = mean_wait_ms(practical, question.utilisation)
    start = governed_start(rail_ms=around.rails, queue_ms=queue, prefill_ms=practical)
    seen = around.rails - start.hidden_ms
    gamma, speedup = 0, 1.0
    if question.draft is not None:
        gamma, speedup = pair.best_gamma(question.alpha, batch=question.batch, context=question.context)
    steps = question.output - 1
    plain = steps * pair.step_ms(batch=question.batch, context=question.context)
    floor = steps * replace(pair, efficiency=FLOOR).step_ms(batch=question.batch, context=question.context)
    parts = (
        Part("network", around.network, around.network, around.network, "round trip, --network-ms"),
        Part("queue", 0.0, queue, queue, f"mean at {question.utilisation:.0%} load"),
        Part("pre-processing", around.pre, around.pre, around.pre, "edge, bus, tokenizer"),
        Part("model: prefill", _prefill(question, FLOOR), practical, practical, _tokens(question)),
        Part("rails not hidden", 0.0, seen, seen, f"of {around.rails:g} ms beside queue and prefill"),
        Part("model: decode", floor, plain, plain / speedup, f"{steps} more tokens", first=False),
        Part("post-processing", around.post, around.post, around.post, "checks run behind the stream"),
        Part("response", around.response, around.response, around.response, "bus, edge"),
    )
    bands = _bands(question)
    cost = None if question.draft is None else pair.draft_cost(batch=question.batch, context=question.context)
    return Plan(
        parts=parts,
        gamma=gamma,
        speedup=speedup,
        draft_cost=cost,
        budget_gamma=0 if cost is None else largest_gamma_in_budget(question.alpha, cost),
        choices=() if cost is None else _choices(cost),
        bands=bands,
        idle_cost=_idle_cost(question, bands),
        free_until=int(compute_bound_tokens(question.target, question.gpu, question.precision) / (gamma + 1)),
        deadline=_deadline(question, practical),
        governance=Governance(
            rails_ms=around.rails,
            hidden=hidden_fraction(rail_ms=around.rails, queue_ms=queue, prefill_ms=practical),
            seen_ms=seen,
            returned_ms=plain - plain / speedup,
            hidden_from=_tokens_that_hide(question),
        ),
    )


def _prefill(question: Question, efficiency: Efficiency) -> float:
    new = question.prompt - question.cached
    return prefill_ms(
        question.target, question.gpu, question.precision, new, cached=question.cached, efficiency=efficiency
    )


def _tokens(question: Question) -> str:
    return f"{question.prompt - question.cached} tokens" + (
        f" after {question.cached} cached" if question.cached else ""
    )


def _choices(cost: float) -> tuple[Choice, ...]:
    return tuple(Choice(alpha, c, *best_gamma(alpha, c)) for c in (cost, cost + LAUNCHES) for alpha in ALPHAS)


def _bands(question: Question) -> tuple[Band, ...]:
    if question.draft is None:
        return ()
    return gamma_by_batch(question.pair, question.alpha, context=question.context)


def _idle_cost(question: Question, bands: Sequence[Band]) -> float | None:
    idle = next((band for band in bands if not band.gamma), None)
    if idle is None or idle.first == 1:
        return None
    return question.pair.draft_cost(batch=idle.first, context=question.context)


def _deadline(question: Question, prefill: float) -> Deadline:
    around = question.around
    left = max(0.0, question.ttft_ms - around.network - around.pre - around.post - around.response)
    return Deadline(
        ttft_ms=question.ttft_ms,
        prefill_ms=left,
        longest=longest_prompt(question.target, question.gpu, question.precision, left),
        longest_floor=longest_prompt(question.target, question.gpu, question.precision, left, efficiency=FLOOR),
        utilisation=highest_utilisation(left, prefill),
        variation=response_variation(question.utilisation),
    )


def _tokens_that_hide(question: Question) -> int:
    """On an idle engine; 0 when there are no rails."""
    rails = question.around.rails
    return longest_prompt(question.target, question.gpu, question.precision, rails) + 1 if rails else 0
