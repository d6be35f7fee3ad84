"""Compute a batch plan: time, cost and quality of each possible way to run a job, and why other ways are impossible."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from services.physics.batches import BatchWork, batch_kv
from services.physics.cascade import chain_recall, recall
from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.gpus import gpu as gpu_named
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import PRECISIONS, Precision
from services.physics.parallel import ONE, Layout
from services.physics.roofline import KvPrecision
from services.planner.batch.hardware import (
    Deployment,
    estimate,
    fastest_precision,
    layouts,
    what_would_fit,
    with_setup,
)
from services.planner.batch.offers import offers
from services.planner.batch.prices import ApiOffer, PriceFile, RentedGpu
from services.planner.batch.ways import BatchJob, Complexity, ExcludedWay, Found, Kind, Range, Way


@dataclass(frozen=True, slots=True)
class BatchPlan:
    ways: tuple[Way, ...]
    refusals: tuple[ExcludedWay, ...]


def plan_batch(job: BatchJob, prices: PriceFile) -> BatchPlan:
    found = Found()
    if job.gpu is not None:
        _local(job, prices, job.gpu, found)
    for rented in prices.rented:
        _rented(job, prices, rented, found)
    for api in prices.api:
        found.ways += offers(api, job.work, prices.scores.get(api.model))
    _cascades(job, prices, found)
    return BatchPlan(tuple(found.ways), tuple(found.refusals))


def owned(
    job: BatchJob, prices: PriceFile, deployment: Deployment, *, name: str, kind: Kind, complexity: Complexity,
    work: BatchWork | None = None, note: str = "",
) -> Way:  # fmt: skip
    """Estimate the time, cost and quality of the job on accelerators that the user owns or would buy.

    The cost is the price of the energy, plus the price of accelerators that the user must still buy.

    Raises:
        ValueError: The model or batch does not fit into memory.
    """
    work = job.work if work is None else work
    entry, count = prices.owned_gpu(deployment.gpu.name), deployment.layout.gpus
    time = estimate(deployment, work, job.factors)
    energy = time.hours.times(count * entry.watts / 1e3 * prices.energy.per_kwh)
    bought = max(0, count - entry.count) * entry.price
    return Way(
        name=name, kind=kind, hours=time.hours, money=energy.plus(Range(bought, bought, bought)),
        per_second=work.requests / time.hours.value / 3_600,
        score=_score(prices, deployment.model, deployment.precision),
        quality=", ".join(filter(None, (_quality(deployment), note))), complexity=complexity,
        why=time.why + (f", {bought:,.0f} for hardware" if bought else ""),
    )  # fmt: skip


def rented_way(job: BatchJob, prices: PriceFile, entry: RentedGpu, deployment: Deployment) -> Way:
    """Estimate the time, cost and quality of the job on rented accelerators. Time and cost include the set-up.

    Raises:
        ValueError: The model or batch does not fit into memory.
    """
    time, count = estimate(deployment, job.work, job.factors), deployment.layout.gpus
    hours = with_setup(time.hours, entry.setup_minutes)
    money = Range(
        hours.value * entry.per_hour * count, hours.low * entry.low * count, hours.high * entry.high * count
    )  # fmt: skip
    return Way(
        name=f"{count} x {deployment.gpu.name} rented, {deployment.precision}{_split(deployment.layout)}",
        kind="rented",
        hours=hours, money=money, per_second=job.work.requests / time.hours.value / 3_600,
        score=_score(prices, deployment.model, deployment.precision), quality=_quality(deployment),
        complexity="low" if count == 1 else "medium", why=time.why,
    )  # fmt: skip


def _local(job: BatchJob, prices: PriceFile, gpu: Gpu, found: Found) -> None:
    prices.owned_gpu(gpu.name)  # raises if the file has no entry, before anything is computed

    def remedy() -> str:
        return what_would_fit(job.model, gpu, job.work)

    def add(
        name: str, deployment: Deployment, kind: Kind, complexity: Complexity = "low", work: BatchWork | None = None,
        note: str = "", fits: Callable[[], str] = remedy,
    ) -> Way | None:  # fmt: skip
        return found.attempt(
            name,
            lambda: owned(job, prices, deployment, name=name, kind=kind, complexity=complexity, work=work, note=note),
            fits,
        )

    for precision in PRECISIONS.values():
        deployment = Deployment(model=job.model, gpu=gpu, precision=precision.name)
        add(f"{job.model.name}, {precision.name}, {deployment.engine}", deployment, "local")
    best = _precision(job.model, gpu, ONE, job.work)
    if best is not None:
        base = Deployment(model=job.model, gpu=gpu, precision=best)
        name, work = f"{job.model.name}, {best}", job.work
        add(f"{name}, one at a time", replace(base, sequences=1), "less work", note="as a loop of requests does it")
        add(f"{name}, prefix not cached", base, "less work", work=replace(work, prefix_cached=False))
        other: KvPrecision = "bf16" if batch_kv(gpu) == "fp8" else "fp8"
        add(f"{name}, KV in {other}", replace(base, kv=other), "less work", note=f"usual: {batch_kv(gpu)}")
        half = replace(work, output=max(1, work.output // 2))
        add(f"{name}, half the output", base, "less work", work=half, note="shorter answers")
        if job.draft is not None:
            drafted = replace(base, draft=job.draft, alpha=job.alpha)
            add(f"{name}, drafted by {job.draft.name}", drafted, "less work", "high")
            add(
                f"{name}, drafted, one at a time", replace(drafted, sequences=1), "less work", "high",
                note="as a loop of requests does it",
            )  # fmt: skip
    for model in job.smaller:
        chosen = _precision(model, gpu, ONE, job.work) or "int4"
        small = Deployment(model=model, gpu=gpu, precision=chosen)
        fits = _remedy_of(model, gpu, job.work)
        add(f"{model.name}, {chosen}", small, "smaller model", note="another model", fits=fits)
    for count in job.counts:
        for layout in layouts(count) if count > 1 else ():
            chosen = _precision(job.model, gpu, layout, job.work) or "int4"
            split = Deployment(model=job.model, gpu=gpu, precision=chosen, layout=layout)
            add(f"{count} x {gpu.name}, {chosen}{_split(layout)}", split, "several GPUs", "medium")


def _rented(job: BatchJob, prices: PriceFile, entry: RentedGpu, found: Found) -> None:
    gpu = gpu_named(entry.gpu)
    for count in job.counts:
        # Several engines on one accelerator each are faster than one engine on several accelerators, unless the model
        # needs the memory of several, or the job has fewer requests than there are engines.
        layout = next(
            (each for each in _by_replicas(count) if _precision(job.model, gpu, each, job.work) is not None), None
        )
        if layout is None:
            if count == max(job.counts):
                reason = f"{job.model.name} fits on no {gpu.name} of up to {count}"
                found.refusals.append(
                    ExcludedWay(f"{count} x {gpu.name} rented", reason, what_would_fit(job.model, gpu, job.work))
                )
            continue
        precision = _precision(job.model, gpu, layout, job.work) or "int4"
        deployment = Deployment(model=job.model, gpu=gpu, precision=precision, layout=layout)
        found.ways.append(rented_way(job, prices, entry, deployment))


def _by_replicas(count: int) -> list[Layout]:
    return [Layout(tensor=n, replicas=count // n) for n in (1, 2, 4, 8) if n <= count and count % n == 0]


def _cascades(job: BatchJob, prices: PriceFile, found: Found) -> None:
    screens = [each for each in found.ways if each.kind == "smaller model" and each.score is not None]
    if not screens:
        return
    screen = max(screens, key=lambda way: way.per_second)
    refined = replace(job.work, requests=max(1, round(job.work.requests * job.refined)))
    kept = recall(job.rho, best=job.best, kept=refined.requests / job.work.requests)
    for api in _refiners(job, prices):
        second = next(iter(offers(api, refined, prices.scores.get(api.model))))
        found.ways.append(_cascade(job, (screen, second), f"{screen.name}, then {api.name}", kept, together=True))
    if job.gpu is None:
        return
    chosen = _precision(job.model, job.gpu, ONE, job.work)
    if chosen is None:
        return
    deployment = Deployment(model=job.model, gpu=job.gpu, precision=chosen)
    last = owned(job, prices, deployment, name="", kind="cascade", complexity="medium", work=refined)
    name = f"{screen.name}, then {job.model.name}"
    found.ways.append(_cascade(job, (screen, last), name, kept, together=False))
    middles = [way for way in screens if way is not screen]
    if middles:
        middle = max(middles, key=lambda way: way.score or 0.0)
        found.ways.append(_three_tiers(job, (screen, middle, last)))


def _three_tiers(job: BatchJob, tiers: tuple[Way, Way, Way]) -> Way:
    first, second, last = tiers
    middle, end = min(1.0, job.refined * 2.5), job.refined / 2
    kept = chain_recall((job.rho, (1 + job.rho) / 2), best=job.best, kept=(middle, end))
    hours = first.hours.plus(second.hours.times(middle)).plus(last.hours.times(0.5))
    money = first.money.plus(second.money.times(middle)).plus(last.money.times(0.5))
    score = (first.score or 0.0) + kept * max(0.0, (last.score or 0.0) - (first.score or 0.0))
    return Way(
        name=f"{first.name}, then {second.name}, then {job.model.name}", kind="cascade", hours=hours, money=money,
        per_second=job.work.requests / hours.value / 3_600, score=None if last.score is None else score,
        quality=f"keeps {kept:.0%} of the best {job.best:.0%} at rho {job.rho:g} and {(1 + job.rho) / 2:g}",
        complexity="high", why=f"{middle:.0%} go to the second, {end:.0%} to the third",
    )  # fmt: skip


def _refiners(job: BatchJob, prices: PriceFile) -> list[ApiOffer]:
    wanted = prices.scores.get(job.model.name, 0.0)
    better = [api for api in prices.api if prices.scores.get(api.model, 0.0) >= wanted]
    best: dict[str, ApiOffer] = {}
    for api in better:
        if api.model not in best or api.tokens_per_minute > best[api.model].tokens_per_minute:
            best[api.model] = api
    return list(best.values())


def _cascade(job: BatchJob, steps: Sequence[Way], name: str, kept: float, *, together: bool) -> Way:
    first, second = steps
    hours = first.hours.at_least(second.hours) if together else first.hours.plus(second.hours)
    score = None
    if first.score is not None and second.score is not None:
        score = first.score + kept * max(0.0, second.score - first.score)
    return Way(
        name=name, kind="cascade", hours=hours, money=first.money.plus(second.money),
        per_second=job.work.requests / hours.value / 3_600, score=score,
        quality=f"keeps {kept:.0%} of the best {job.best:.0%} at rho {job.rho:g}", complexity="medium",
        why=f"the best {job.refined:.0%} of the first go to the second{', at the same time' if together else ''}",
    )  # fmt: skip


def _precision(model: Model, gpu: Gpu, layout: Layout, work: BatchWork) -> Precision | None:
    try:
        return fastest_precision(model, gpu, layout, work)
    except ValueError:
        return None


def _remedy_of(model: Model, gpu: Gpu, work: BatchWork) -> Callable[[], str]:
    return lambda: what_would_fit(model, gpu, work)


def _score(prices: PriceFile, model: Model, precision: Precision) -> float | None:
    score = prices.scores.get(model.name)
    return None if score is None else score - PRECISIONS[precision].lost_points


def _quality(deployment: Deployment) -> str:
    return f"{deployment.model.name}, {PRECISIONS[deployment.precision].note}"


def _split(layout: Layout) -> str:
    return f", {layout}" if layout.gpus > 1 else ""
