"""Choose the number of tokens to draft for each batch size, from the measurements of a bench."""

from collections.abc import Mapping, Sequence
from typing import Final

from services.physics.adaptive import MARGIN, GammaBand
from services.planner.bench.closed_loops import ShapeMeasurement
from services.planner.bench.results import PLAIN

MAX_BATCH: Final = 256
"""Largest batch in a schedule. Above the largest measured batch, the schedule drafts nothing."""


def bands(rows: Sequence[ShapeMeasurement], gammas: Mapping[str, int]) -> tuple[GammaBand, ...]:
    """Return the number of tokens to draft (gamma) for each range of batch sizes.

    In each range, choose the gamma with the shortest measured time between tokens, or 0 if drafting saves too little.
    ``gammas`` has the number of tokens that each arm of the bench drafts per step.
    """
    # Empty if no batch size was measured both with and without drafting. Gamma never grows with the batch size.
    # A gamma that saves time at one batch size also saves time at smaller ones, because a smaller batch leaves more
    # arithmetic units free to verify. So the gamma of a measured size also applies to the unmeasured sizes below it.
    found: list[GammaBand] = []
    for batch in sorted({row.batch for row in rows}):
        paces = _paces([row for row in rows if row.batch == batch])
        if PLAIN not in paces or len(paces) < 2:
            continue
        most = found[-1].gamma if found else max(gammas.values())
        able = {name: pace for name, pace in paces.items() if gammas[name] <= most and name != PLAIN}
        best = min(able, key=lambda name: able[name], default=PLAIN)
        pays = best != PLAIN and able[best] < paces[PLAIN] * (1 - MARGIN)
        _add(found, batch, gammas[best] if pays else 0)
    if found and found[-1].last < MAX_BATCH:
        _add(found, MAX_BATCH, 0)
    return tuple(found)


def _paces(rows: Sequence[ShapeMeasurement]) -> dict[str, float]:
    by_arm: dict[str, list[float]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row.token_ms)
    # Only arms that were measured with every prompt length can be compared.
    shapes = max(map(len, by_arm.values()))
    return {name: sum(times) / len(times) for name, times in by_arm.items() if len(times) == shapes}


def _add(found: list[GammaBand], last: int, gamma: int) -> None:
    first = found[-1].last + 1 if found else 1
    if found and found[-1].gamma == gamma:
        first = found.pop().first
    found.append(GammaBand(first, last, gamma))
