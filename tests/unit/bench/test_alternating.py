"""Test that ``median_interval`` returns a 95 % confidence interval of the median."""

import random

import pytest

from tests.bench.alternating import median_interval


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (8, 1), (12, 3), (24, 7), (36, 12)])
def test_the_interval_is_that_of_the_sign_test(count, rank):
    """The interval reaches from the ``rank``-th smallest to the ``rank``-th largest value.

    The ranks for 95 % confidence come from tables of the sign test.
    """
    values = random.Random(1).sample(range(count), count)
    assert median_interval([float(value) for value in values]) == (rank - 1, count - rank)


def test_it_holds_the_median_at_least_as_often_as_it_says():
    rng = random.Random(2)
    held = 0
    for _ in range(2_000):
        low, high = median_interval([rng.lognormvariate(0.0, 1.0) for _ in range(14)])
        held += low <= 1.0 <= high
    assert held / 2_000 >= 0.94


def test_few_values_give_all_of_them():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([1.0]) == (1.0, 1.0)
