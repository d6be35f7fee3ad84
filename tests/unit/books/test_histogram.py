"""Test that the relative error of a quantile is at most ``RELATIVE_ERROR``, and that added values can be subtracted."""

import math

from hypothesis import given
from hypothesis import strategies as st

from services.books.histogram import LEAST, MOST, RELATIVE_ERROR, Histogram, bucket_of, value_of

VALUES = st.floats(LEAST * 1.001, MOST * 0.999)


@given(VALUES)
def test_a_bucket_stands_for_its_values(value):
    assert abs(value_of(bucket_of(value)) - value) <= RELATIVE_ERROR * value * (1 + 1e-9)


@given(st.lists(VALUES, min_size=1), st.floats(0, 1))
def test_a_quantile_is_as_near_as_stated(values, share):
    histogram = Histogram((bucket_of(value), 1) for value in values)
    exact = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    assert abs(histogram.quantile(share) - exact) <= RELATIVE_ERROR * exact * (1 + 1e-9)


def test_the_99th_percentile_of_a_few_is_the_largest():
    histogram = Histogram((bucket_of(value), 1) for value in (90, 130, 160, 320))
    assert histogram.quantile(0.99) == histogram.quantile(0.95) == value_of(bucket_of(320))
    assert histogram.quantile(0.5) == value_of(bucket_of(130))
    twenty = Histogram((bucket_of(value), 1) for value in range(1, 21))
    assert twenty.quantile(0.95) == value_of(bucket_of(19))


@given(st.lists(VALUES), st.lists(VALUES))
def test_what_is_added_can_be_taken_away(first, second):
    histogram = Histogram((bucket_of(value), 1) for value in first)
    before = Histogram(histogram.buckets())
    for sign in (1, -1):
        for value in second:
            histogram.add(bucket_of(value), sign)
    assert histogram == before
    both = Histogram((bucket_of(value), 1) for value in first + second)
    histogram.merge(Histogram((bucket_of(value), 1) for value in second))
    assert histogram == both


def test_the_ends_have_buckets_of_their_own():
    assert value_of(bucket_of(0.0)) == 0.0
    assert bucket_of(1e12) == bucket_of(MOST)
    assert Histogram().quantile(0.5) is None
