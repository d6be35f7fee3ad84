"""Test percentiles, and that confidence intervals have the promised coverage."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.physics.statistics import bootstrap, bootstrap_ratio, median, percentile

times = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=30)


@given(times, st.floats(0, 1), st.floats(0, 1))
def test_percentiles_are_ordered_and_within(values, a, b):
    low, high = sorted((a, b))
    assert min(values) <= percentile(values, low) <= percentile(values, high) <= max(values)


def test_percentiles_of_what_is_known():
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(range(101), 0.99) == 99
    assert percentile([7], 0.99) == 7
    assert median([1, 2]) == 1.5
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_an_interval_holds_the_truth_about_19_times_of_20():
    held = 0
    for seed in range(60):
        draw = random.Random(seed)
        interval = bootstrap([draw.gauss(100, 10) for _ in range(60)], median, seed=seed)
        assert interval.low <= interval.value <= interval.high
        held += interval.low <= 100 <= interval.high
    assert held >= 50


def test_a_ratio_of_arms():
    draw = random.Random(1)
    slow, fast = ([draw.gauss(mean, 5) for _ in range(80)] for mean in (100, 50))
    ratio = bootstrap_ratio(fast, slow, median)
    assert ratio.low < 0.5 < ratio.high
    assert ratio.high - ratio.low < 0.1
    same = bootstrap_ratio(slow, slow, median)
    assert same.low <= 1 <= same.high
    assert bootstrap_ratio([1.0], [2.0], median).value == 0.5
