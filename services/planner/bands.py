"""How much to draft at which batch, from what was measured. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from services.physics.adaptive import MARGIN, Band
from services.planner.grid import Row
from services.planner.results import PLAIN

LARGEST: Final = 256
"""Most sequences that a schedule speaks of; beyond what was measured nothing is drafted."""


def bands(rows: Sequence[Row], gammas: Mapping[str, int]) -> tuple[Band, ...]:
    """The gamma that was fastest at each measured batch, and none beyond; nothing where no batch ran in two arms.

    What pays at one batch pays at smaller ones, because a batch uses up the arithmetic that verifying needs: so each
    choice holds down to the batch below, and gamma never grows. Drafting must win by ``MARGIN``. Where a model
    drafts, an engine's step that drafts nothing is dearer than with drafting off (``Plan.idle_cost``).

    Args:
        rows: What was measured.
        gammas: What each arm was told to draft; 0 for the plain one.
    """
    found: list[Band] = []
    for batch in sorted({row.batch for row in rows}):
        paces = _paces([row for row in rows if row.batch == batch])
        if PLAIN not in paces or len(paces) < 2:
            continue
        most = found[-1].gamma if found else max(gammas.values())
        able = {name: pace for name, pace in paces.items() if gammas[name] <= most and name != PLAIN}
        best = min(able, key=lambda name: able[name], default=PLAIN)
        pays = best != PLAIN and able[best] < paces[PLAIN] * (1 - MARGIN)
        _add(found, batch, gammas[best] if pays else 0)
    if found and found[-1].last < LARGEST:
        _add(found, LARGEST, 0)
    return tuple(found)


def _paces(rows: Sequence[Row]) -> dict[str, float]:
    """Time between tokens of each arm that ran all prompts of this batch, their mean."""
    by_arm: dict[str, list[float]] = {}
    for row in rows:
        by_arm.setdefault(row.arm, []).append(row.token_ms)
    shapes = max(map(len, by_arm.values()))
    return {name: sum(times) / len(times) for name, times in by_arm.items() if len(times) == shapes}


def _add(found: list[Band], last: int, gamma: int) -> None:
    first = found[-1].last + 1 if found else 1
    if found and found[-1].gamma == gamma:
        first = found.pop().first
    found.append(Band(first, last, gamma))
