"""What a cascade decides: scores, the best, the budget; and the line of a job's progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.batches import BatchTotals
from services.cli.batch.progress import ProgressLine, TokenPrices, duration
from services.cli.batch.tiers import Budget, Score, affordable, best, sampled, score_of


@pytest.mark.parametrize(
    ("answer", "score", "found"),
    [
        ("Score: 3 ... Score: 7.5", Score(regex="Score: ([0-9.]+)"), 7.5),
        ("none", Score(regex="Score: ([0-9.]+)"), None),
        ("Score: 1.2.3", Score(regex="Score: ([0-9.]+)"), None),
        ('{"rating": {"total": 4}}', Score(json="rating.total"), 4.0),
        ('{"rating": true}', Score(json="rating"), None),
        ('{"rating": []}', Score(json="rating.total"), None),
        ("not json", Score(json="rating"), None),
    ],
)
def test_a_score(answer, score, found):
    assert score_of(answer, score) == found


@given(st.dictionaries(st.text(), st.floats(-1e9, 1e9), max_size=30), st.integers(-1, 40))
def test_no_line_that_is_left_out_is_better_than_one_that_is_kept(scores, count):
    kept = best(scores, count)
    assert len(kept) == max(0, min(count, len(scores)))
    rest = [scores[name] for name in scores if name not in kept]
    assert not kept or not rest or min(scores[name] for name in kept) >= max(rest)


def test_a_sample_is_always_the_same():
    names = [str(n) for n in range(1_000)]
    assert sampled(names, 20) == sampled(names, 20)
    assert len(set(sampled(names, 20))) == 20
    assert sampled(names, 2_000) == names


@given(
    st.integers(0, 10**6), st.none() | st.floats(0.1, 1e4), st.none() | st.floats(0.1, 1e4), st.floats(0, 1e4),
    st.floats(0, 1e4), st.floats(0, 100), st.floats(0, 100),
)  # fmt: skip
def test_what_is_refined_stays_within_the_budget(wanted, hours, usd, spent_h, spent_usd, seconds_each, usd_each):
    count = affordable(
        wanted, Budget(hours=hours, usd=usd), spent_h=spent_h, spent_usd=spent_usd, seconds_each=seconds_each,
        usd_each=usd_each,
    )  # fmt: skip
    assert 0 <= count <= wanted
    if count and hours is not None:
        assert spent_h + count * seconds_each / 3_600 <= hours * (1 + 1e-6) + 1e-6
    if count and usd is not None:
        assert spent_usd + count * usd_each <= usd * (1 + 1e-6) + 1e-6


def test_the_line_says_rate_time_tokens_cache_and_money():
    line = ProgressLine(TokenPrices(input=1.0, output=2.0, cached_input=0.5))
    line.note(BatchTotals(lines=1_000), 0.0)
    totals = BatchTotals(
        lines=1_000, completed=90, failed=10, prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=500_000
    )
    line.note(totals, 10.0)
    assert line.text(totals, "in_progress") == (
        "in_progress [##......................] 100/1,000, 10 failed, 10.0/s, ETA 1 min 30 s, 1,500,000 tokens,"
        " 40% cached, $1.80"
    )
    assert ProgressLine().text(BatchTotals(), "validating") == "validating"
    assert [duration(s) for s in (5, 65, 7_260)] == ["5 s", "1 min 5 s", "2 h 1 min"]
