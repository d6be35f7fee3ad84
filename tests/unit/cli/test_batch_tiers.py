"""Test how a cascade scores answers, picks lines and stays within its budget, and how a job's progress is shown."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.batches import BatchTotals
from services.cli.batch.progress import ProgressLine, TokenPrices, duration
from services.cli.batch.tiers import Budget, Score, affordable, best, read_tiers, sampled, scorer_of
from services.runtime.errors import UserError


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
        ('{"a": 4, "b": [1, 2]}', Score(cel="json.a * 2.0 + json.b[1] - double(size(json.b))"), 8.0),
        ("Yes, and good", Score(cel='answer.startsWith("Yes") && size(answer) < 20'), 1.0),
        ("7", Score(cel="json"), 7.0),
        ('{"a": "x"}', Score(cel="json.a * 2.0"), None),
        ('{"b": 1}', Score(cel="json.a"), None),
        ('{"b": 0}', Score(cel="1.0 / json.b"), None),  # infinite
        ("[" * 900 + "]" * 900, Score(cel="json"), None),
        ("none", Score(cel="json.a"), None),
    ],
)
def test_a_score(answer, score, found):
    assert scorer_of(score)(answer) == found


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("0.5\nno", "x"),
        ("json.a +", "Syntax error"),
        ("score * 2", "Undefined variable"),
    ],
)
def test_an_expression_that_cannot_be_used_is_refused(tmp_path, expression, found):
    path = tmp_path / "plan.toml"
    tiers = '[[tier]]\nmodel = "a"\n[[tier]]\nmodel = "b"\nkeep = 0.1\n'
    path.write_text(f'{tiers}[score]\ncel = """{expression}"""\n', encoding="utf-8")
    with pytest.raises(UserError, match=rf"--tiers .*plan.toml: score.cel.*{found}"):
        read_tiers(path)


@pytest.mark.parametrize("pattern", ["(a", "(a{99999999999})"])
def test_a_pattern_that_cannot_be_used_is_refused(tmp_path, pattern):
    path = tmp_path / "plan.toml"
    path.write_text(f"[score]\nregex = '{pattern}'\n[[tier]]\nmodel = 'a'\n[[tier]]\nmodel = 'b'\nkeep = 0.1\n")
    with pytest.raises(UserError, match=r"--tiers .*plan.toml: score.regex: "):
        read_tiers(path)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cel", None)
    with pytest.raises(UserError, match=r"pip install 'railbus\[cel\]'"):
        scorer_of(Score(cel="1.0"))


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
