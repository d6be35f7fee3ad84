"""Test that quantiles match published tables, and that confidence intervals contain the true value often enough."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.physics.statistics import Interval, percentile
from services.tuner.statistics import mean_interval, paired_difference, ratio_interval, t_quantile, variation, wilson


@pytest.mark.parametrize(
    ("degrees", "confidence", "table"),
    [
        (1, 0.95, 12.706), (2, 0.95, 4.303), (3, 0.95, 3.182), (3, 0.99, 5.841), (4, 0.99, 4.604),
        (7, 0.95, 2.365), (7, 0.99, 3.499), (10, 0.99, 3.169), (30, 0.95, 2.042), (120, 0.99, 2.617),
    ],
)  # fmt: skip
def test_quantiles_of_t_are_those_of_the_tables(degrees, confidence, table):
    assert t_quantile(degrees, confidence) == pytest.approx(table, rel=2e-3)


def test_an_interval_of_few_values_holds_the_truth_as_often_as_it_says():
    rng = random.Random(3)
    held = 0
    for _ in range(2_000):
        found = mean_interval([rng.gauss(5, 2) for _ in range(5)], 0.95)
        held += found.low <= 5 <= found.high
    assert 0.93 <= held / 2_000 <= 0.97


def test_one_value_has_no_interval():
    found = mean_interval([3.0], 0.95)
    assert (found.value, found.low, found.high) == (3.0, -math.inf, math.inf)
    ratio = ratio_interval([3.0], [1.0], 0.95)
    assert (ratio.low, ratio.high) == (0.0, math.inf)
    with pytest.raises(ValueError, match="two values"):
        t_quantile(0, 0.95)
    with pytest.raises(ValueError, match="not within"):
        Interval(1.0, 2.0, 3.0)


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=20), st.floats(0.1, 10))
def test_a_ratio_is_what_all_pairs_agree_on(below, factor):
    found = ratio_interval([factor * each for each in below], below, 0.99)
    assert found.low - 1e-6 <= factor <= found.high + 1e-6
    assert found.value == pytest.approx(factor)


@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_percentiles_are_ordered_and_within(values, a, b):
    low, high = sorted((a, b))
    assert min(values) <= percentile(values, low) <= percentile(values, high) <= max(values)


def test_variation_of_what_is_known():
    assert variation([9.0, 11.0]) == pytest.approx(math.sqrt(2) / 10)
    assert math.isnan(variation([1.0]))


def test_wilson_as_published():
    found = wilson(15, 148, 0.95)  # Newcombe 1998, table I: 15 of 148
    assert (found.low, found.high) == pytest.approx((0.0624, 0.1605), abs=2e-4)
    assert wilson(0, 0, 0.95) == Interval(0.0, 0.0, 1.0)


def test_a_paired_difference_as_published():
    # Newcombe 1998 (paired), table II: 36 both, 12 and 2 alone, 0 neither: 0.20 (0.0569 to 0.3404) by method 10.
    first = [True] * 48 + [False] * 2
    second = [True] * 36 + [False] * 12 + [True] * 2
    found = paired_difference(first, second, 0.95)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0569, 0.3404), abs=2e-3)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_paired_difference_holds_its_value_and_is_never_certain(pairs):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    found = paired_difference(first, second, 0.95)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert found.high > found.low
