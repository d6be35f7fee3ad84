"""Test the formulas for the recall of a cascade of models: the share of the best requests that reach the last model.

The best requests are those to which the last model would give its highest scores. The expected values come from
simulations, from limiting cases, and from a table of a design document that is not in this repository.
"""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.physics.cascade import chain_recall, rank_correlation, recall


@pytest.mark.parametrize(
    ("rho", "at_10k", "at_20k"), [(0.7, 0.63, 0.79), (0.8, 0.79, 0.91), (0.9, 0.93, 0.99)]
)  # fmt: skip
def test_the_designs_table(rho, at_10k, at_20k):
    """The computed recall of a cascade's first model agrees with the design document's table.

    Of 200,000 requests, 10,000 or 20,000 go from the first model to the last model. The recall is the fraction of the
    best 2,000 requests that reach the last model. ``rho`` is the rank correlation between the two models' scores.
    """
    assert recall(rho, best=0.01, kept=0.05) == pytest.approx(at_10k, abs=0.02)
    assert recall(rho, best=0.01, kept=0.10) == pytest.approx(at_20k, abs=0.02)


def test_a_simulation_with_the_measured_rank_correlation_agrees():
    rng = random.Random(7)
    final = [rng.gauss(0, 1) for _ in range(40_000)]
    screen = [0.8 * value + 0.6 * rng.gauss(0, 1) for value in final]
    rho = rank_correlation(screen, final)
    assert 0.77 < rho < 0.80  # a little below the correlation of the values, 0.8
    order = sorted(range(len(final)), key=final.__getitem__, reverse=True)[:400]
    bar = sorted(screen, reverse=True)[2_000]
    kept = sum(screen[each] > bar for each in order) / 400
    assert recall(rho, best=0.01, kept=0.05) == pytest.approx(kept, abs=0.06)


def test_a_chain_of_two_screens_agrees_with_a_simulation():
    rng = random.Random(3)
    final = [rng.gauss(0, 1) for _ in range(40_000)]
    screens = [[r * value + math.sqrt(1 - r * r) * rng.gauss(0, 1) for value in final] for r in (0.8, 0.9)]
    rhos = [rank_correlation(screen, final) for screen in screens]
    first = sorted(range(40_000), key=screens[0].__getitem__, reverse=True)[:10_000]
    second = set(sorted(first, key=screens[1].__getitem__, reverse=True)[:2_000])
    best = sorted(range(40_000), key=final.__getitem__, reverse=True)[:400]
    kept = sum(each in second for each in best) / 400
    assert chain_recall(rhos, best=0.01, kept=(0.25, 0.05)) == pytest.approx(kept, abs=0.04)
    assert chain_recall(rhos, best=0.01, kept=(1.0, 0.05)) == pytest.approx(
        recall(rhos[1], best=0.01, kept=0.05), abs=0.01
    )
    with pytest.raises(ValueError, match="each screen needs"):
        chain_recall(rhos, best=0.01, kept=(0.05, 0.25))


@given(st.floats(-1, 1), st.floats(0.001, 0.5), st.floats(0.001, 0.999), st.floats(0, 0.2))
def test_more_kept_or_better_scores_never_find_less(rho, best, kept, more):
    found = recall(rho, best=best, kept=kept)
    assert -1e-9 <= found <= 1 + 1e-9
    assert recall(rho, best=best, kept=min(1, kept + more)) >= found - 1e-9
    assert recall(min(1, rho + more), best=best, kept=kept) >= found - 5e-3


def test_the_limits():
    assert recall(0, best=0.01, kept=0.1) == pytest.approx(0.1, abs=1e-6)
    assert recall(1, best=0.01, kept=0.05) == 1
    assert recall(0.5, best=0.01, kept=1) == 1
    assert recall(0.5, best=0.01, kept=0) == 0
    with pytest.raises(ValueError, match="rho"):
        recall(1.1, best=0.1, kept=0.1)
    with pytest.raises(ValueError, match="best"):
        recall(0.5, best=0, kept=0.1)


def test_a_rank_correlation_of_small_samples():
    assert rank_correlation([1, 2, 3, 4], [10, 100, 1_000, 10_000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(0.894, abs=0.001)
    for first, second in (([1, 2], [1, 2]), ([1, 2, 3], [1, 2]), ([1, 1, 1], [1, 2, 3])):
        with pytest.raises(ValueError, match="rank correlation"):
            rank_correlation(first, second)
