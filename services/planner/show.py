"""A latency plan as lines for people, and as one object for programs. Pure."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from services.physics.adaptive import Band, profile
from services.planner.latency import Plan
from services.planner.question import Question

COLUMNS = ("floor", "practical", "drafted")


def lines(question: Question, plan: Plan) -> Iterator[str]:
    """The plan, a line at a time."""
    yield from _head(question)
    yield ""
    yield from _budget(plan)
    if question.draft is not None:
        yield ""
        yield from _drafting(plan)
    yield ""
    yield from _deadline(question, plan)
    yield ""
    yield from _governance(plan)


def as_json(question: Question, plan: Plan) -> dict[str, Any]:
    """The same, and what was asked."""
    asked = asdict(question) | {
        "gpu": question.gpu.name,
        "target": question.target.name,
        "draft": None if question.draft is None else question.draft.name,
    }
    totals = {
        name: {column: plan.total(column, first=first) for column in COLUMNS}
        for name, first in (("first_token_ms", True), ("last_token_ms", False))
    }
    return {
        "question": asked,
        "plan": asdict(plan) | totals,
        "profile": _profile(plan),
        "governance_paid": plan.governance.paid,
        "memory_gb": question.memory_bytes() / 1e9,
    }


def _head(question: Question) -> Iterator[str]:
    who = question.target.name + (f" with {question.draft.name}" if question.draft is not None else "")
    yield (
        f"{who} on {question.gpu.name}, {question.precision}: prompt {question.prompt}, output {question.output}, "
        f"batch {question.batch}, alpha {question.alpha:g}"
    )
    share = question.memory_bytes() / question.gpu.memory_bytes
    yield f"memory {question.memory_bytes() / 1e9:.1f} of {question.gpu.memory_bytes / 1e9:.0f} GB ({share:.0%})"


def _budget(plan: Plan) -> Iterator[str]:
    drafted = f"gamma {plan.gamma}" if plan.gamma else "no draft"
    yield f"{'ms':<18} {'floor':>9} {'practical':>10} {drafted:>10}"
    for part in plan.parts:
        yield f"{part.name:<18} {part.floor:>9.1f} {part.practical:>10.1f} {part.drafted:>10.1f}  {part.note}".rstrip()
    for name, first in (("to the first token", True), ("to the last token", False)):
        values = [plan.total(column, first=first) for column in COLUMNS]
        yield f"{name:<18} {values[0]:>9.1f} {values[1]:>10.1f} {values[2]:>10.1f}"


def _drafting(plan: Plan) -> Iterator[str]:
    if plan.gamma:
        yield (
            f"speculation: best gamma {plan.gamma}, {plan.speedup:.2f} times as many tokens a second "
            f"(c = {plan.draft_cost:.2f}; the budget T_draft x gamma < T_target x (tau - 1) admits {plan.budget_gamma})"
        )
    else:
        yield f"speculation: does not pay here (c = {plan.draft_cost:.2f}); draft nothing"
    shown = sorted({choice.draft_cost for choice in plan.choices})
    yield "best gamma, speed-up at alpha " + "".join(f"{c.alpha:>12g}" for c in plan.choices[: len(plan.choices) // 2])
    for cost, about in zip(shown, ("by bytes", "with launches, about"), strict=True):
        row = [choice for choice in plan.choices if choice.draft_cost == cost]
        yield f"  c {cost:.2f} {about:<22} " + "".join(f"{f'{each.gamma}  {each.speedup:.2f}':>12}" for each in row)
    yield f"by batch: {', '.join(map(_band, plan.bands))}; verifying is free up to batch {plan.free_until}"
    if not _profile(plan):
        yield "  RAILBUS_VLLM_METHOD=off"
        return
    yield f'  RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH="{_profile(plan)}"'
    if plan.idle_cost is not None:
        yield (
            f"  where that is 0 a loaded draft model still reads along, {plan.idle_cost:.0%} of a step: if most "
            "batches are so large, RAILBUS_VLLM_METHOD=off"
        )


def _profile(plan: Plan) -> str:
    """The schedule for the engine; empty when nothing is ever drafted, which the engine is told otherwise."""
    return profile(plan.bands) if any(band.gamma for band in plan.bands) else ""


def _band(band: Band) -> str:
    batches = f"{band.first}" if band.first == band.last else f"{band.first}-{band.last}"
    return f"{batches} gamma {band.gamma}" if band.gamma else f"{batches} off"


def _deadline(question: Question, plan: Plan) -> Iterator[str]:
    deadline = plan.deadline
    yield (
        f"first token within {deadline.ttft_ms:g} ms: {deadline.prefill_ms:g} ms are left for queue and prefill; "
        f"met by prompts of up to {deadline.longest} uncached tokens on an idle engine "
        f"(at the floor: {deadline.longest_floor})"
    )
    if deadline.utilisation > 0:
        yield f"  99 % of prompts like this one meet it up to a load of {deadline.utilisation:.0%}"
        if question.utilisation:
            yield (
                f"  at a load of {question.utilisation:.0%} queue and prefill vary by {deadline.variation:.0%} of "
                "their mean, however steady the engine"
            )
    else:
        yield f"  prompts of {question.prompt - question.cached} uncached tokens do not meet it at any load"


def _governance(plan: Plan) -> Iterator[str]:
    governance = plan.governance
    yield (
        f"governance: rails of {governance.rails_ms:g} ms beside queue and prefill, {governance.hidden:.0%} hidden, "
        f"{governance.seen_ms:.1f} ms seen before the first token"
    )
    if governance.paid:
        yield "  paid for: nobody waits for them"
    else:
        yield (
            f"  not paid for: speculation returns {governance.returned_ms:.0f} ms by the last token, none before the "
            f"first; the rails are hidden from {governance.hidden_from} uncached tokens on"
        )
