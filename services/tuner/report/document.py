"""The content of a report: sections with sentences, tables and drawings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from services.physics.statistics import Interval
from services.runtime.settings import without_secrets
from services.tuner.decide import percent
from services.tuner.experiment import METRICS, Metric, Size
from services.tuner.find_batch import BatchFinding
from services.tuner.guide import CV_CORRECTION, TAIL_CORRECTION, check_guide
from services.tuner.measurements import Load, failed, gain, stability, values
from services.tuner.report.drawings import forest, lines_with_bars
from services.tuner.search import Search, Tried

MARKS: Final = {"ticked": "[x]", "refuted": "[-]", "unclear": "[?]", "not tried": "[ ]"}

GUIDE_LOSS: Final = 0.01
"""Maximum loss of quality in the guide's verification, as a share. ``Rules.max_loss`` may allow more."""

_PROCESSES: Final = {
    False: "new processes each round",
    True: "the same processes in all rounds, so the intervals leave out by how much equal processes differ",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    sentences: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    drawing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The conditions of an experiment.

    Attributes:
        load: Load average of the machine at the start.
        kept: Whether engines stayed loaded between rounds.
    """

    command: str
    engine: str
    model: str
    cpus: int
    load: float
    shape: str
    minutes: float
    kept: bool = False


def tune_sections(search: Search, about: About, size: Size) -> list[Section]:
    return [
        _summary(search, about, size),
        _changes(search),
        _checklist(search),
        _verification(search),
        _metrics(search),
        _quality(search),
        _conditions(search, about),
    ]


def find_sections(finding: BatchFinding, about: About, slo: tuple[float, float]) -> list[Section]:
    knee = finding.knee
    said = [
        (
            f"Throughput stops growing at {knee.value:g} requests at once (95 %: {knee.low:g} to {knee.high:g}):"
            " 90 % of the highest throughput is reached there."
        ),
        f"Limits: first token p99 {slo[0]:g} ms, between tokens p99 {slo[1]:g} ms. "
        + ("No size breaks them." if finding.breaks_at is None else f"They break at {finding.breaks_at}."),
        "No size keeps the limits." if finding.best is None else f"Take {finding.best}.",
    ]
    if finding.still_growing:
        said.append("It may still grow beyond the largest size: raise --max-batch.")
    rows = [
        (
            f"{row.batch}", _with(row.tokens_per_s), f"{row.first_token_p50_ms:.1f}", f"{row.first_token_p99_ms:.1f}",
            f"{row.token_p99_ms:.1f}", f"{row.requests}", "yes" if row.good else "no",
        )
        for row in finding.rows
    ]  # fmt: skip
    header = ("at once", "tokens/s (95 %)", "first token p50 ms", "p99 ms", "token p99 ms", "requests", "within limits")
    points = [(row.batch, row.tokens_per_s) for row in finding.rows]
    drawing = lines_with_bars(points, title="tokens a second by requests at once", mark=knee.value)
    return [
        Section(title="Batch size", sentences=said, header=header, rows=rows, drawing=drawing),
        _where(about),
    ]


def _summary(search: Search, about: About, size: Size) -> Section:
    kept = [each for each in search.tried if each.decision.kept]
    said = [
        (
            f"Engine {about.engine}, model {about.model}. {len(search.tried)} changes measured, {len(kept)} kept;"
            f" it ended because {search.stopped}."
        ),
        f"{size.requests} requests a change in {size.rounds} rounds of A B B A, {_PROCESSES[about.kept]}."
        + (f" Fewer than 1,000, because {size.reason}." if size.reason else ""),
    ]
    if search.is_disturbed():
        said.append(
            "Equal settings differed by more than the margin: this machine was not quiet enough. Measure again."
        )
    said += [f"Keep {each.trial.change.name}: {each.decision.reason}." for each in kept]
    if not kept:
        said.append("No change is worth keeping.")
    drawing = forest(
        [
            (each.trial.change.name, each.decision.gains[search.rules.objective], each.decision.kept)
            for each in search.tried
            if search.rules.objective in each.decision.gains
        ],
        title=f"Gain in {METRICS[search.rules.objective]}, 99 % intervals",
        margin=search.rules.margin,
    )
    return Section(title="Result", sentences=said, drawing=drawing)


def _changes(search: Search) -> Section:
    rows: list[Sequence[str]] = [
        (
            each.trial.change.name,
            " ".join(f"{name}={value}" for name, value in without_secrets(each.trial.change.settings).items()),
            each.decision.outcome,
            each.decision.reason,
            f"{sum(len(load.requests) for load in (*each.trial.before, *each.trial.after))}",
        )
        for each in search.tried
    ]
    rows += [(name, "", "not tried", reason, "0") for name, reason in search.skipped.items()]
    return Section(title="Changes", header=("change", "settings", "outcome", "why", "requests"), rows=rows)


def _checklist(search: Search) -> Section:
    rows = []
    for each in check_guide(search):
        claim = "" if each.item.claim is None else f"{each.item.claim[0]:g} to {each.item.claim[1]:g} times"
        speed = "" if each.speed is None else f"{_with(each.speed, digits=2)} times"
        holds = {None: "", True: "holds here", False: "does not hold here"}[each.within_claim]
        rows.append(
            (MARKS[each.state], each.item.title, claim, speed, holds, f"{each.reason}. {each.item.correction}".strip())
        )
    return Section(
        title="The guide's checklist",
        sentences=["[x] kept, [-] measured and refuted here, [?] neither shown nor ruled out, [ ] not tried."],
        header=(
            "",
            "item",
            "the guide says",
            "measured, best of the item",
            "the claim",
            "why, and what the guide omits",
        ),
        rows=rows,
    )


def _verification(search: Search) -> Section:
    return Section(
        title="The guide's verification",
        sentences=[CV_CORRECTION, TAIL_CORRECTION],
        header=("", "item", "found"),
        rows=[(mark, title, found) for mark, title, found in _verified(search)],
    )


def _verified(search: Search) -> Iterator[tuple[str, str, str]]:
    kept = [each for each in search.tried if each.decision.kept]

    def mark(held: bool | None) -> str:
        return MARKS["not tried" if held is None else "ticked" if held else "refuted"]

    yield (
        mark(bool(kept) if search.tried else None),
        "Latency reduced",
        f"{len(kept)} of {len(search.tried)} changes kept",
    )
    null = search.null
    if null is not None and null.rounds:
        between, tail = stability([*null.before, *null.after])
        found = f"between loads {between:.1%}; p99 over p50 within {tail:.2f}"
        yield mark(between < 0.001), "Coefficient of variation < 0.1 %", found
    losses = {each.trial.change.name: loss for each in kept if (loss := _loss(each)) is not None}
    lost = "; ".join(f"{name} {what} {percent(loss)}" for name, (what, loss) in losses.items())
    accuracy = _accuracy_mark([loss for _, loss in losses.values()]) if kept else mark(None)
    yield accuracy, "Accuracy degradation < 1 %", lost or "no lossy change is kept"
    failures = sum(failed([*each.trial.before, *each.trial.after]) for each in search.tried)
    yield mark(failures == 0 if search.tried else None), "No errors", f"{failures} requests failed"
    rounds = min((len(each.trial.rounds) for each in kept), default=0)
    yield mark(rounds >= 3 if kept else None), "Reproducible across 3 or more runs", f"{rounds} rounds at least"
    answer: list[Metric] = [name for name in METRICS if name.startswith(search.rules.objective[:6])]
    limits = search.rules.guards
    lists: tuple[tuple[str, list[Metric], float], ...] = (
        ("All percentiles improved", answer, 0.0),
        ("Throughput maintained or improved", ["tokens_per_s"], limits["tokens_per_s"]),
        ("Memory usage within limits", ["memory_mib"], limits["memory_mib"]),
    )
    for title, metrics, may_lose in lists:
        gains = [each.decision.gains[name] for each in kept for name in metrics if name in each.decision.gains]
        worst = min(gains, key=lambda each: each.value, default=None)
        held = None if worst is None else worst.value > -may_lose
        yield mark(held), title, "nothing is kept" if worst is None else f"least gain {percent(worst)}"


def _metrics(search: Search) -> Section:
    first, last = search.null, _last_measured(search)
    if first is None or not first.rounds:
        return Section(title="Before and after", sentences=["Nothing was measured."])
    before, after = values([*first.before, *first.after]), values(last)
    rows = [
        (METRICS[name], _number(before.get(name)), _number(after.get(name)), f"{after[name] / before[name] - 1:+.1%}")
        for name in METRICS
        if name in before and name in after
    ]
    cv, tail = stability([*first.before, *first.after])
    cv_after, tail_after = stability(last)
    rows.append(("variation between loads", f"{cv:.1%}", f"{cv_after:.1%}", ""))
    rows.append(("p99 over p50 of the answer", f"{tail:.2f}", f"{tail_after:.2f}", ""))
    said = [
        "Baseline and best settings, each as measured in its own comparison: the intervals are in the list of changes."
    ]
    return Section(title="Before and after", sentences=said, header=("metric", "baseline", "best", "change"), rows=rows)


def _quality(search: Search) -> Section:
    rows = []
    for each in search.tried:
        quality = each.trial.quality
        if quality is not None:
            rise = quality.perplexity_rise
            perplexity = "no log-probabilities"
            if rise is not None and quality.perplexity_before is not None and quality.perplexity_after is not None:
                pair = f"{quality.perplexity_before:.2f} to {quality.perplexity_after:.2f}"
                perplexity = f"{pair}, {percent(rise)}"
            parted = (
                "" if quality.first_divergence is None else f", differing from character {quality.first_divergence:g}"
            )
            itself = quality.baseline_identical.value
            rows.append(
                (
                    each.trial.change.name + (" (lossy)" if each.trial.change.lossy else ""),
                    f"{_with(quality.identical, share=True)}{parted}; baseline with itself {itself:.0%}",
                    perplexity,
                    f"{quality.solved_before:.0%} to {quality.solved_after:.0%}; lost {percent(quality.loss)}",
                )
            )
    said = [
        "Greedy answers to the 48 tasks of the package, one at a time; perplexity of its 12 texts; 95 % intervals."
        if rows
        else "No change was lossy or gained, the engine has no model, or an engine failed: answers were not compared."
    ]
    return Section(
        title="Quality",
        sentences=said,
        header=("change", "equal answers", "perplexity", "tasks solved") if rows else (),
        rows=rows,
    )


def _conditions(search: Search, about: About) -> Section:
    rules = search.rules
    where = _where(about)
    said = [
        *where.sentences,
        (
            f"A change is kept if the {rules.confidence:.0%} interval of the gain in {METRICS[rules.objective]} lies"
            f" above {rules.margin:.0%}, no other metric is shown to pay for it, and quality holds: lossless changes"
            f" give equal answers, lossy ones lose at most {rules.max_loss:.1%}."
        ),
        *(f"Accepted: {METRICS[each.metric]} up to {each.value:g}." for each in rules.accepted),
    ]
    null = search.null
    if null is not None and null.rounds:
        found = gain(null.rounds, rules.objective, rules.confidence)
        if found is not None:
            said.append(f"The baseline against itself: {percent(found)}.")
    return Section(title="Conditions", sentences=said)


def _where(about: About) -> Section:
    return Section(
        title="Conditions",
        sentences=[
            about.command,
            f"{about.shape}.",
            f"{about.cpus} CPUs, load average {about.load:.1f} at the start, {about.minutes:.1f} minutes.",
        ],
    )


def _last_measured(search: Search) -> list[Load]:
    kept = [each for each in search.tried if each.decision.kept]
    if kept:
        return kept[-1].trial.after
    return [] if search.null is None else [*search.null.before, *search.null.after]


def _loss(tried: Tried) -> tuple[str, Interval] | None:
    quality = tried.trial.quality
    # A change that is said to be lossless is judged like a lossy one if it alters answers.
    if quality is None or not (tried.trial.change.lossy or quality.fewer_identical.low > 0):
        return None
    return ("tasks lost", quality.loss) if quality.perplexity_rise is None else ("perplexity", quality.perplexity_rise)


def _accuracy_mark(losses: Sequence[Interval]) -> str:
    if all(loss.high <= GUIDE_LOSS for loss in losses):
        return MARKS["ticked"]
    return MARKS["refuted" if any(loss.low > GUIDE_LOSS for loss in losses) else "unclear"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _with(interval: Interval, *, digits: int = 1, share: bool = False) -> str:
    form = ".0%" if share else f".{digits}f"
    if not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return f"{interval.value:{form}}"
    return f"{interval.value:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def as_json(search: Search, about: About, size: Size) -> Mapping[str, Any]:
    return {
        "version": 1,
        "about": about,
        "size": {"rounds": size.rounds, "load": size.load, "requests": size.requests, "reason": size.reason},
        "rules": search.rules,
        "stopped": search.stopped,
        "disturbed": search.is_disturbed(),
        "baseline": without_secrets(search.base),
        "best": without_secrets(search.best),
        "baseline_metrics": _pooled(search.null.before + search.null.after if search.null is not None else []),
        "best_metrics": _pooled(_last_measured(search)),
        "changes": [
            {
                "change": replace(each.trial.change, settings=without_secrets(each.trial.change.settings)),
                "outcome": each.decision.outcome,
                "kept": each.decision.kept,
                "reason": each.decision.reason,
                "gains": each.decision.gains,
                "quality": each.trial.quality,
                "rounds": len(each.trial.rounds),
                "before": _pooled(each.trial.before),
                "after": _pooled(each.trial.after),
            }
            for each in search.tried
        ],
        "skipped": search.skipped,
        "guide": [
            {"item": each.item.key, "state": each.state, "reason": each.reason, "speed": each.speed,
             "within_claim": each.within_claim}
            for each in check_guide(search)
        ],
    }  # fmt: skip


def _pooled(loads: Sequence[Load]) -> dict[Metric, float]:
    return values(loads)
