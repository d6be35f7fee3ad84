from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from services.planner.batch.choose import BatchAnswer, hours_text, money_text, pareto_front
from services.planner.batch.plan import BatchPlan
from services.planner.batch.prices import PriceFile
from services.planner.batch.ways import BatchJob, Way


def lines(job: BatchJob, prices: PriceFile, plan: BatchPlan, found: Sequence[BatchAnswer]) -> Iterator[str]:
    work = job.work
    yield (
        f"{work.requests:,} requests of {work.shared} shared + {work.own} own + {work.output} output tokens, "
        f"{job.model.name}; prices of {prices.as_of}"
    )
    front = {way.name for way in pareto_front(plan.ways)}
    width = max([len(way.name) for way in plan.ways] + [3])
    yield ""
    yield (
        f"  {'way':<{width}} {'req/s':>6} {'time':>8} {'from - to':>19} {'money':>8} {'from - to':>19} {'score':>5} "
        "effort quality; why"
    )
    kind = ""
    for way in plan.ways:
        if way.kind != kind:
            kind = way.kind
            yield f"{kind}:"
        yield _row(way, width, way.name in front)
    yield "* on the Pareto front: no other way is both faster and cheaper"
    if any(way.kind not in {"measured", "API"} for way in plan.ways):
        yield (
            "a batch of N in vLLM needs RAILBUS_VLLM_MAX_SEQS=N+1 (default: 64) and RAILBUS_GENERATOR_BATCH_SLOTS=N; "
            "of a pipeline, N is the batch times its stages"
        )
    yield ""
    for answer in found:
        yield from _answer(answer)
    yield from _refusals(plan)


def as_json(job: BatchJob, prices: PriceFile, plan: BatchPlan, found: Sequence[BatchAnswer]) -> dict[str, Any]:
    question = asdict(job) | {
        "model": job.model.name,
        "gpu": None if job.gpu is None else job.gpu.name,
        "smaller": [each.name for each in job.smaller],
        "draft": None if job.draft is None else job.draft.name,
    }
    return {
        "question": question,
        "prices_as_of": prices.as_of.isoformat(),
        "ways": [asdict(way) for way in plan.ways],
        "front": [way.name for way in pareto_front(plan.ways)],
        "answers": [
            {"question": each.question, "way": None if each.way is None else each.way.name, "why": each.why}
            for each in found
        ],
        "refused": [asdict(each) for each in plan.refusals],
    }


def _row(way: Way, width: int, front: bool) -> str:
    hours = f"{hours_text(way.hours.low)} - {hours_text(way.hours.high)}"
    money = f"{money_text(way.money.low)} - {money_text(way.money.high)}"
    score = "?" if way.score is None else f"{way.score:.1f}"
    return (
        f"{'*' if front else ' '} {way.name:<{width}} {way.per_second:>6.2f} {hours_text(way.hours.value):>8} "
        f"{hours:>19} {money_text(way.money.value):>8} {money:>19} {score:>5} {way.complexity:<6} "
        f"{way.quality}; {way.why}"
    )


def _answer(answer: BatchAnswer) -> Iterator[str]:
    if answer.way is None:
        yield f"{answer.question}: {answer.why}"
        return
    way = answer.way
    yield f"{answer.question}: {way.name}, {hours_text(way.hours.value)}, {money_text(way.money.value)}"
    yield f"  {answer.why}"


def _refusals(plan: BatchPlan) -> Iterator[str]:
    if not plan.refusals:
        return
    yield ""
    yield "does not fit:"
    for remedy in dict.fromkeys(each.remedy for each in plan.refusals):
        yield from (f"  {each.name}: {each.reason}" for each in plan.refusals if each.remedy == remedy)
        yield f"    {remedy}"
