"""Test that ``find_batch`` finds the knee of a simulated machine and the smallest batch that breaks a latency limit.

The knee is the batch size at which throughput stops growing.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tuner.find_batch import batch_sizes, find_batch
from services.tuner.measurements import Load, RequestRow


def load(batch, knee, rng, noise):
    """Return measurements of a simulated machine that runs ``batch`` requests at a time.

    The throughput grows with the batch size up to ``knee``. If ``batch`` is larger, each request takes longer.
    """
    pace = max(1.0, batch / knee) * (1 + rng.uniform(-noise, noise))
    rows = tuple(RequestRow(steps=tuple((pace * (10.0 + 5 * at), 1) for at in range(6)), total_ms=35 * pace)
                 for _ in range(2 * batch))  # fmt: skip
    return Load(requests=rows, wall_s=2 * 35 * pace / 1e3)


def rounds(knee, *, largest=64, noise=0.02, count=4, seed=1):
    rng = random.Random(seed)
    return [
        {batch: [load(batch, knee, rng, noise) for _ in range(2)] for batch in batch_sizes(largest)}
        for _ in range(count)
    ]  # fmt: skip


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(0, 1_000))
def test_a_planted_knee_is_found(knee, seed):
    found = find_batch(rounds(knee, seed=seed, largest=32), slo_ttft_ms=1e9, slo_token_ms=1e9)
    assert found.knee.value == knee
    assert found.knee.low <= knee <= found.knee.high
    assert (found.breaks_at, found.best) == (None, knee)
    assert not found.still_growing


def test_throughput_that_still_grows_is_said_to():
    assert find_batch(rounds(1_000, largest=8), slo_ttft_ms=1e9, slo_token_ms=1e9).still_growing


def test_limits_break_where_they_do():
    found = find_batch(rounds(8), slo_ttft_ms=25, slo_token_ms=1e9)  # 10 ms up to size 8, 20 at 16, 40 at 32
    assert found.breaks_at == 32
    assert found.best == 8
    strict = find_batch(rounds(8), slo_ttft_ms=1, slo_token_ms=1e9)
    assert (strict.breaks_at, strict.best) == (1, None)


def test_a_failed_request_breaks_the_limits():
    found = rounds(8)
    broken = RequestRow(steps=(), total_ms=1.0, error="timeout")
    found[0][16] = [Load(requests=(*found[0][16][0].requests, broken), wall_s=1.0)]
    assert find_batch(found, slo_ttft_ms=1e9, slo_token_ms=1e9).breaks_at == 16


@pytest.mark.parametrize(("largest", "sizes"), [(2, [1, 2]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_sizes_are_powers_of_two_and_the_largest(largest, sizes):
    assert batch_sizes(largest) == sizes
