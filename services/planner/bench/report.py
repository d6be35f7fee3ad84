from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from services.planner.bench.closed_loops import accepted_share, by_position, rows
from services.planner.bench.open_loops import ArmRatio, BenchSlo, LoadSummary, Percentiles, ratios, summary
from services.planner.bench.results import BenchResult


def lines(result: BenchResult, slo: BenchSlo) -> Iterator[str]:
    first = result.runs[0].measured
    order = " ".join(run.arm for run in result.runs)
    yield f"engine {first.engine}, model {first.model}, {first.machine.get('cpus')} CPUs; runs: {order}"
    if any(run.measured.cut for run in result.runs):
        yield "the time limit ended the runs early: raise --limit-s, or measure less"
    summaries = summary(result, slo)
    if summaries:
        yield ""
        yield from _open_loops(summaries, slo)
    against = ratios(result)
    if against:
        yield ""
        yield from map(_ratio, against)
    yield ""
    yield from _drafts(result)
    yield from _costs(result)


def as_json(result: BenchResult, slo: BenchSlo) -> dict[str, Any]:
    return {
        "engine": result.runs[0].measured.engine,
        "model": result.runs[0].measured.model,
        "runs": [run.arm for run in result.runs],
        "cut": any(run.measured.cut for run in result.runs),
        "slo": asdict(slo),
        "open_loops": [asdict(each) for each in summary(result, slo)],
        "against_plain": [asdict(each) for each in ratios(result)],
        "drafts": {arm: _draft(result, arm) for arm in result.arms},
        "costs": [_cost(result, arm) for arm in result.arms],
    }


def comparison_lines(first: BenchResult, second: BenchResult, slo: BenchSlo) -> Iterator[str]:
    yield f"{'arm':<14} {'load':<24} {'ms to':<12} {'first':>9} {'second':>9} {'change':>8}"
    later = _medians(second, slo)
    for key, value in _medians(first, slo).items():
        if key in later:
            arm, load, what = key
            yield f"{arm:<14} {load:<24} {what:<12} {value:>9.1f} {later[key]:>9.1f} {later[key] / value - 1:>+8.1%}"


def _medians(result: BenchResult, slo: BenchSlo) -> dict[tuple[str, str, str], float]:
    found: dict[tuple[str, str, str], float] = {}
    for each in summary(result, slo):
        for what, spread in (("first token", each.ttft), ("a token", each.token), ("whole answer", each.total)):
            if spread is not None:
                found[each.arm, f"{each.rate:g}/s, {each.cache}", what] = spread.p50.value
    for row in rows(result):
        load = f"batch {row.batch}, prompt {row.prompt}"
        found[row.arm, load, "first token"] = row.ttft_ms
        found[row.arm, load, "a token"] = row.token_ms
    return found


def _open_loops(summaries: Sequence[LoadSummary], slo: BenchSlo) -> Iterator[str]:
    yield (
        f"{'arm':<14} {'cache':<5} {'n':>4} {'err':>3} {'ms to':<12} {'p50 (95 %)':>22} {'p95':>8} {'p99':>8} "
        f"{'p99/p50':>7}"
    )
    for each in summaries:
        for name, spread in (("first token", each.ttft), ("a token", each.token), ("whole answer", each.total)):
            if spread is not None:
                yield f"{each.arm:<14} {each.cache:<5} {each.requests:>4} {each.errors:>3} {name:<12} {_spread(spread)}"
    for each in summaries:
        yield (
            f"{each.arm:<14} {each.cache:<5} {each.rate:g} requests/s; first token within {slo.ttft_ms:g} ms, "
            f"{slo.token_ms:g} ms a token: {each.good:.0%}, {each.goodput:.2f}/s; {each.cached:.0%} of prompts cached"
        )


def _spread(spread: Percentiles) -> str:
    p50 = spread.p50
    shown = f"{p50.value:.1f} ({p50.low:.1f}-{p50.high:.1f})"
    return f"{shown:>22} {spread.p95:>8.1f} {spread.p99:>8.1f} {spread.tail:>7.2f}"


def _ratio(each: ArmRatio) -> str:
    ratio = each.ratio
    runs = ", ".join(f"{value:.2f}" for value in each.by_run)
    return (
        f"{each.arm} over plain, {each.cache}, {each.what}: {ratio.value:.2f} times as long "
        f"({ratio.low:.2f}-{ratio.high:.2f}; by pair of runs {runs}), {each.verdict}"
    )


def _drafts(result: BenchResult) -> Iterator[str]:
    for arm in result.arms:
        draft = _draft(result, arm)
        if draft is not None:
            positions = " ".join(f"{share:.2f}" for share in draft["by_position"]) or "(the engine does not report it)"
            yield f"{arm}: accepted {draft['kept']:.0%} of the drafted tokens; by position {positions}"


def _draft(result: BenchResult, arm: str) -> dict[str, Any] | None:
    share = accepted_share(result.of(arm))
    return None if share is None else {"kept": share, "by_position": by_position(result.of(arm))}


def _costs(result: BenchResult) -> Iterator[str]:
    for arm in result.arms:
        cost = _cost(result, arm)
        gpu = f", {cost['gpu_mib']:.0f} MiB of GPU memory" if cost["gpu_mib"] is not None else ""
        yield (
            f"{arm}: ready after {cost['ready_s']:.1f} s; its processes used {_or_dash(cost['cpu_share'])} cores and "
            f"{_or_dash(cost['memory_mib'])} MiB{gpu}; others used {_or_dash(cost['others'])} cores"
        )


def _cost(result: BenchResult, arm: str) -> dict[str, Any]:
    runs = result.of(arm)
    cpu = [run.cpu_s / run.wall_s for run in runs if run.cpu_s is not None and run.wall_s]
    others = [run.others_s / run.wall_s for run in runs if run.others_s is not None and run.wall_s]
    memory = [run.memory_mib for run in runs if run.memory_mib is not None]
    gpu = [run.gpu_mib for run in runs if run.gpu_mib is not None]
    return {
        "arm": arm,
        "ready_s": max(run.ready_s for run in runs),
        "cpu_share": round(sum(cpu) / len(cpu), 2) if cpu else None,
        "others": round(sum(others) / len(others), 2) if others else None,
        "memory_mib": max(memory, default=None),
        "gpu_mib": max(gpu, default=None),
    }


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
