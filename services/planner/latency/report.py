from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from services.physics.adaptive import GammaBand, format_schedule
from services.physics.catalogue.gpus import GIB
from services.planner.latency.plan import LatencyPlan
from services.planner.latency.plan_input import PlanInput

COLUMNS = ("floor", "practical", "drafted")


def lines(inputs: PlanInput, plan: LatencyPlan) -> Iterator[str]:
    yield from _head(inputs)
    yield ""
    yield from _budget(plan)
    if inputs.draft is not None:
        yield ""
        yield from _drafting(plan)
    yield ""
    yield from _deadline(inputs, plan)
    yield ""
    yield from _governance(plan)


def as_json(inputs: PlanInput, plan: LatencyPlan) -> dict[str, Any]:
    question = asdict(inputs) | {
        "gpu": inputs.gpu.name,
        "target": inputs.target.name,
        "draft": None if inputs.draft is None else inputs.draft.name,
    }
    totals = {
        name: {column: plan.total(column, first=first) for column in COLUMNS}
        for name, first in (("first_token_ms", True), ("last_token_ms", False))
    }
    return {
        "question": question,
        "plan": asdict(plan) | totals,
        "profile": _profile(plan),
        "governance_paid": plan.governance.paid,
        "memory_gib": inputs.memory_bytes() / GIB,
    }


def _head(inputs: PlanInput) -> Iterator[str]:
    who = inputs.target.name + (f" with {inputs.draft.name}" if inputs.draft is not None else "")
    yield (
        f"{who} on {inputs.gpu.name}, {inputs.engine}, {inputs.precision}, KV in {inputs.kv}: "
        f"prompt {inputs.prompt}, output {inputs.output}, batch {inputs.batch}, alpha {inputs.alpha:g}"
    )
    share = inputs.memory_bytes() / inputs.gpu.memory_bytes
    yield f"memory {inputs.memory_bytes() / GIB:.1f} of {inputs.gpu.memory_bytes / GIB:.0f} GiB ({share:.0%})"


def _budget(plan: LatencyPlan) -> Iterator[str]:
    drafted = f"gamma {plan.gamma}" if plan.gamma else "no draft"
    yield f"{'ms':<18} {'floor':>9} {'practical':>10} {drafted:>10}"
    for part in plan.parts:
        yield f"{part.name:<18} {part.floor:>9.1f} {part.practical:>10.1f} {part.drafted:>10.1f}  {part.note}".rstrip()
    for name, first in (("to the first token", True), ("to the last token", False)):
        values = [plan.total(column, first=first) for column in COLUMNS]
        yield f"{name:<18} {values[0]:>9.1f} {values[1]:>10.1f} {values[2]:>10.1f}"


def _drafting(plan: LatencyPlan) -> Iterator[str]:
    if plan.gamma:
        yield (
            f"speculation: best gamma {plan.gamma}, {plan.speedup:.2f} times as many tokens per second "
            f"(c = {plan.draft_cost:.2f}; the budget T_draft x gamma < T_target x (tau - 1) allows {plan.budget_gamma})"
        )
    else:
        yield f"speculation: does not pay here (c = {plan.draft_cost:.2f}); draft nothing"
    shown = sorted({choice.draft_cost for choice in plan.choices})
    yield "best gamma, speed-up at alpha " + "".join(f"{c.alpha:>12g}" for c in plan.choices[: len(plan.choices) // 2])
    for cost, about in zip(shown, ("by the law", "if drafting is slow"), strict=True):
        row = [choice for choice in plan.choices if choice.draft_cost == cost]
        yield f"  c {cost:.2f} {about:<22} " + "".join(f"{f'{each.gamma}  {each.speedup:.2f}':>12}" for each in row)
    verifying = f"; a verify step takes {plan.verify_cost:.2f} plain steps" if plan.verify_cost is not None else ""
    yield f"by batch: {', '.join(map(_band, plan.bands))}{verifying}"
    if not _profile(plan):
        yield "  RAILBUS_VLLM_METHOD=off"
        return
    yield f'  RAILBUS_VLLM_SPECULATIVE_TOKENS_BY_BATCH="{_profile(plan)}"'
    if plan.idle_cost is not None:
        yield (
            f"  where gamma is 0, a loaded draft model still runs in each step and costs {plan.idle_cost:.0%} of it: "
            "if most batches are so large, set RAILBUS_VLLM_METHOD=off"
        )


def _profile(plan: LatencyPlan) -> str:
    # If gamma is 0 at every batch size, drafting is turned off by another setting.
    return format_schedule(plan.bands) if any(band.gamma for band in plan.bands) else ""


def _band(band: GammaBand) -> str:
    batches = f"{band.first}" if band.first == band.last else f"{band.first}-{band.last}"
    return f"{batches} gamma {band.gamma}" if band.gamma else f"{batches} off"


def _deadline(inputs: PlanInput, plan: LatencyPlan) -> Iterator[str]:
    deadline = plan.deadline
    yield (
        f"first token within {deadline.ttft_ms:g} ms of receipt: {deadline.prefill_ms:g} ms are left for queue and "
        "prefill; "
        f"met by prompts of up to {deadline.longest} uncached tokens on an idle engine "
        f"(at the floor: {deadline.longest_floor})"
    )
    if deadline.utilisation > 0:
        yield f"  99 % of prompts like this one meet it up to a load of {deadline.utilisation:.0%}"
        if inputs.utilisation:
            yield (
                f"  at a load of {inputs.utilisation:.0%} queue and prefill vary by {deadline.variation:.0%} of "
                "their mean, even if the engine's own speed is constant"
            )
    else:
        yield f"  prompts of {inputs.prompt - inputs.cached} uncached tokens do not meet it at any load"


def _governance(plan: LatencyPlan) -> Iterator[str]:
    governance = plan.governance
    yield (
        f"governance: rails of {governance.rails_ms:g} ms, during queue and prefill, {governance.hidden:.0%} "
        f"hidden, {governance.seen_ms:.1f} ms added before the first token"
    )
    if governance.paid:
        yield "  paid for: the rails delay no first token"
    else:
        yield (
            f"  not paid for: speculation saves {governance.returned_ms:.0f} ms by the last token, none before the "
            f"first; the rails are hidden from {governance.hidden_from} uncached tokens on"
        )
