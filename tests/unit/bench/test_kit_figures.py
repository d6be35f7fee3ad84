"""Tests of the benchmark's load client: percentiles, counts, prompts and arrival times."""

from array import array
from itertools import pairwise
from statistics import fmean, median

import pytest

from tests.bench.kit.figures import MOST_ERRORS, Answer, percentile, spread, summary
from tests.bench.kit.workload import FEWEST_WORDS, MOST_WORDS, poisson_arrivals, prompt


def answered(intended_s, sent_s, *arrivals_s, text="A000 ", **more):
    return Answer(
        intended_s=intended_s, sent_s=sent_s, arrivals_s=array("d", arrivals_s), ended_s=arrivals_s[-1], text=text,
        **({"finished": True} | more),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([7], 0.99, 7), ([1, 2], 0.5, 1.5), ([4, 1, 3, 2], 0.5, 2.5), (range(101), 0.95, 95), (range(101), 1.0, 100)],
)
def test_percentiles_are_interpolated(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected)


def test_nothing_has_no_percentile():
    assert spread([]) is None


def test_latency_counts_from_the_intended_start():
    found = summary([answered(10.0, 10.5, 10.6, 10.7, 10.9)], wall_s=2.0)
    assert found["ttft_ms"]["p50"] == 600
    assert found["total_ms"]["p50"] == 900
    assert found["sent_late_ms"]["p50"] == 500
    assert found["gap_ms"] == {"p50": 150, "p95": 195, "p99": 199, "max": 200}
    assert found["chunks_per_s"] == 1.5


def test_what_failed_is_told_and_not_timed():
    good, cut = answered(0, 0, 0.1), answered(0, 0, 9.0, finished=False)
    broken, wrong = answered(0, 0, 9.0, error="status 503: no"), answered(0, 0, 0.1, text="B000 ")
    found = summary([good, cut, broken, wrong], wall_s=1.0, expected_text="A000 ")
    assert (found["requests"], found["ok"], found["wrong_text"]) == (4, 2, 1)
    assert found["errors"] == {"ended without [DONE] or without text": 1, "status 503: no": 1}
    assert found["ttft_ms"]["max"] == 100


def test_kinds_of_errors_are_bounded():
    found = summary([answered(0, 0, 1.0, error=f"error {n}") for n in range(MOST_ERRORS + 5)], wall_s=1.0)["errors"]
    assert len(found) == MOST_ERRORS + 1
    assert found["others"] == 5


def test_prompts_differ_and_are_the_same_every_time():
    texts = [prompt(3, number) for number in range(2_000)]
    assert len(set(texts)) == 2_000
    assert texts == [prompt(3, number) for number in range(2_000)]
    assert not set(texts) & {prompt(4, number) for number in range(2_000)}


def test_prompts_are_of_realistic_lengths():
    words = sorted(len(prompt(1, number).split()) for number in range(2_000))
    assert words[0] >= FEWEST_WORDS
    assert words[-1] <= MOST_WORDS + 30
    assert 50 <= median(words) <= 100
    assert words[int(0.95 * len(words))] > 3 * median(words)


def test_arrivals_are_a_poisson_process_by_the_seed():
    times = list(poisson_arrivals(50, 20_000, seed=1))
    assert times == list(poisson_arrivals(50, 20_000, seed=1))
    assert times != list(poisson_arrivals(50, 20_000, seed=2))
    assert times[-1] == pytest.approx(400, rel=0.05)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = fmean(gaps)
    assert fmean((gap - mean) ** 2 for gap in gaps) ** 0.5 == pytest.approx(mean, rel=0.05)  # exponential
