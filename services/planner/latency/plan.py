"""Compute a latency plan: the time budget, the effect of speculative decoding, and the cost of input rails."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from services.physics.adaptive import GammaBand, gamma_by_batch
from services.physics.deadlines import highest_utilisation, longest_prompt, mean_wait_ms, response_variation
from services.physics.efficiency import FLOOR, Efficiency
from services.physics.governance import governed_start, hidden_fraction
from services.physics.newcomers import burst
from services.physics.roofline import prefill_ms
from services.physics.speculation import best_gamma, largest_gamma_in_budget
from services.planner.latency.plan_input import PlanInput

ALPHAS: Final = (0.6, 0.7, 0.8, 0.9)
SLOW_DRAFT: Final = 1.3
"""Time of a slow draft step divided by the predicted time. Measured draft steps of two pairs of models
took longer than predicted, by 0.15 and 0.30 of the predicted time."""


@dataclass(frozen=True, slots=True)
class BudgetPart:
    """One part of the latency budget, in milliseconds.

    Attributes:
        floor: Lower bound for any engine.
        practical: Estimate for a good engine.
        drafted: Estimate for a good engine with speculative decoding.
        first: Whether the first token waits for this part. False for decode and for the prefill of other prompts, which
            delay only later tokens.
    """

    name: str
    floor: float
    practical: float
    drafted: float
    note: str = ""
    first: bool = True


@dataclass(frozen=True, slots=True)
class GammaChoice:
    alpha: float
    draft_cost: float
    gamma: int
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernanceCost:
    """The time that the input rails cost, compared with the time that speculative decoding saves.

    The rails run while the request is in the queue and in prefill.

    Attributes:
        rails_ms: Time of the rails.
        hidden: Share of ``rails_ms`` that does not delay the first token.
        seen_ms: Part of ``rails_ms`` that delays the first token.
        returned_ms: Time by which speculative decoding shortens the whole answer.
        hidden_from: Smallest number of uncached prompt tokens whose prefill takes longer than the rails.
    """

    rails_ms: float
    hidden: float
    seen_ms: float
    returned_ms: float
    hidden_from: int

    @property
    def paid(self) -> bool:
        """Whether the rails add no delay to the first token. If so, the report prints ``paid for``."""
        return self.seen_ms == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenDeadline:
    """The longest prompt and the highest load with which the first token meets a deadline.

    Attributes:
        ttft_ms: The deadline, counted from the receipt of the request at the edge.
        prefill_ms: Part of the deadline that is left for queue and prefill.
        longest: Longest prompt, in uncached tokens, that meets the deadline on an idle engine.
        longest_floor: Like ``longest``, but for an ideal engine that reaches the rates of the GPU's data sheet.
        utilisation: Highest load at which 99 % of the requests meet the deadline; 0 if there is none.
        variation: Coefficient of variation of the time for queue and prefill.
    """

    ttft_ms: float
    prefill_ms: float
    longest: int
    longest_floor: int
    utilisation: float
    variation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPlan:
    """The result of ``railbus plan latency``.

    Attributes:
        gamma: Number of tokens to draft per step; 0 if drafting saves no time.
        speedup: Tokens per second with drafting, divided by tokens per second without drafting.
        draft_cost: Time of a draft step divided by the time of a target step; None without a draft model.
        budget_gamma: Largest ``gamma`` that is expected to save time; 0 if there is none. The computation ignores
            overhead, and assumes that a verify step takes as long as a plain step.
        choices: The best gamma for several acceptance probabilities and values of ``draft_cost``.
        bands: The best gamma by batch size.
        verify_cost: Time of a verify step divided by the time of a plain step; None if ``gamma`` is 0.
    """

    parts: tuple[BudgetPart, ...]
    gamma: int
    speedup: float
    draft_cost: float | None
    budget_gamma: int
    choices: tuple[GammaChoice, ...]
    bands: tuple[GammaBand, ...]
    idle_cost: float | None
    verify_cost: float | None
    deadline: FirstTokenDeadline
    governance: GovernanceCost

    def total(self, column: str, *, first: bool) -> float:
        """Return the sum of a column over all parts. The columns are ``floor``, ``practical`` and ``drafted``.

        With ``first``, add only the parts before the first token.
        """
        return sum((float(getattr(part, column)) for part in self.parts if part.first or not first), 0.0)


def plan_latency(inputs: PlanInput) -> LatencyPlan:
    pair, around = inputs.pair, inputs.around
    practical = _prefill(inputs, pair.achieved)
    queue = mean_wait_ms(practical, inputs.utilisation)
    start = governed_start(rail_ms=around.rails, queue_ms=queue, prefill_ms=practical)
    seen = around.rails - start.hidden_ms
    gamma, speedup = 0, 1.0
    if inputs.draft is not None:
        gamma, speedup = pair.best_gamma(inputs.alpha, batch=inputs.batch, context=inputs.context)
    steps = inputs.output - 1
    plain = steps * pair.step_ms(batch=inputs.batch, context=inputs.context)
    newcomers = _newcomers(inputs)
    floor = steps * replace(pair, efficiency=FLOOR).step_ms(batch=inputs.batch, context=inputs.context)
    parts = (
        BudgetPart("network", around.network, around.network, around.network, "round trip, --network-ms"),
        BudgetPart("queue", 0.0, queue, queue, f"mean at {inputs.utilisation:.0%} load"),
        BudgetPart("pre-processing", around.pre, around.pre, around.pre, "edge, bus, tokenizer"),
        BudgetPart("model: prefill", _prefill(inputs, FLOOR), practical, practical, _tokens(inputs)),
        BudgetPart("rails not hidden", 0.0, seen, seen, f"of {around.rails:g} ms, during queue and prefill"),
        BudgetPart("model: decode", floor, plain, plain / speedup, f"{steps} more tokens", first=False),
        BudgetPart("others' prefill", 0.0, newcomers, newcomers, "delays the answer at this batch", first=False),
        BudgetPart("post-processing", around.post, around.post, around.post, "checks run in parallel to the stream"),
        BudgetPart("response", around.response, around.response, around.response, "bus, edge"),
    )
    bands = _bands(inputs)
    cost = None if inputs.draft is None else pair.draft_cost(batch=inputs.batch, context=inputs.context)
    return LatencyPlan(
        parts=parts,
        gamma=gamma,
        speedup=speedup,
        draft_cost=cost,
        budget_gamma=0 if cost is None else largest_gamma_in_budget(inputs.alpha, cost),
        choices=() if cost is None else _choices(cost),
        bands=bands,
        idle_cost=_idle_cost(inputs, bands),
        verify_cost=_verify_cost(inputs, gamma) if gamma else None,
        deadline=_deadline(inputs, practical),
        governance=GovernanceCost(
            rails_ms=around.rails,
            hidden=hidden_fraction(rail_ms=around.rails, queue_ms=queue, prefill_ms=practical),
            seen_ms=seen,
            returned_ms=plain - plain / speedup,
            hidden_from=_tokens_that_hide(inputs),
        ),
    )


def _prefill(inputs: PlanInput, efficiency: Efficiency) -> float:
    new = inputs.prompt - inputs.cached
    return prefill_ms(inputs.target, inputs.gpu, inputs.precision, new, cached=inputs.cached, efficiency=efficiency)


def _newcomers(inputs: PlanInput) -> float:
    found = burst(
        inputs.target, inputs.gpu, inputs.precision,
        batch=inputs.batch, prompt=inputs.prompt, cached=inputs.cached, efficiency=inputs.pair.achieved,
    )  # fmt: skip
    return found.stall_ms if inputs.output > 1 else 0.0


def _verify_cost(inputs: PlanInput, gamma: int) -> float:
    where = {"batch": inputs.batch, "context": inputs.context}
    return inputs.pair.step_ms(**where, positions=gamma + 1) / inputs.pair.step_ms(**where)


def _tokens(inputs: PlanInput) -> str:
    return f"{inputs.prompt - inputs.cached} tokens" + (f" after {inputs.cached} cached" if inputs.cached else "")


def _choices(cost: float) -> tuple[GammaChoice, ...]:
    return tuple(GammaChoice(alpha, c, *best_gamma(alpha, c)) for c in (cost, cost * SLOW_DRAFT) for alpha in ALPHAS)


def _bands(inputs: PlanInput) -> tuple[GammaBand, ...]:
    if inputs.draft is None:
        return ()
    return gamma_by_batch(inputs.pair, inputs.alpha, context=inputs.context)


def _idle_cost(inputs: PlanInput, bands: Sequence[GammaBand]) -> float | None:
    # The cost of a draft step at the smallest batch size at which drafting saves no time.
    # vLLM runs a loaded draft model even where gamma is 0, to keep its KV cache complete.
    idle = next((band for band in bands if not band.gamma), None)
    if idle is None or idle.first == 1:
        return None
    return inputs.pair.draft_cost(batch=idle.first, context=inputs.context)


def _deadline(inputs: PlanInput, prefill: float) -> FirstTokenDeadline:
    around = inputs.around
    # The router counts from the receipt at the edge until the token is on the log, so the client's network does not
    # count. Nor does the transfer from the log to the edge, but it is not known separately from the transfer to the
    # log. It is below 2 ms.
    left = max(0.0, inputs.ttft_ms - around.pre - around.post - around.response)
    return FirstTokenDeadline(
        ttft_ms=inputs.ttft_ms,
        prefill_ms=left,
        longest=longest_prompt(inputs.target, inputs.gpu, inputs.precision, left, efficiency=inputs.pair.achieved),
        longest_floor=longest_prompt(inputs.target, inputs.gpu, inputs.precision, left, efficiency=FLOOR),
        utilisation=highest_utilisation(left, prefill),
        variation=response_variation(inputs.utilisation),
    )


def _tokens_that_hide(inputs: PlanInput) -> int:
    rails = inputs.around.rails
    if not rails:
        return 0
    where = (inputs.target, inputs.gpu, inputs.precision)
    return longest_prompt(*where, rails, efficiency=inputs.pair.achieved) + 1
