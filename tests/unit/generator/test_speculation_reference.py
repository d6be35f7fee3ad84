"""Test which rules of speculative sampling are lossless.

Some tests compute the result exactly, for any distributions p of the target and q of the draft. Others draw samples.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.goodness_of_fit import chi_square, upper_gamma
from tests.support.speculative_sampling import (
    NOTHING,
    RULES,
    acceptance,
    draw,
    emitted,
    one_hot,
    total_variation,
    verify,
)

LOSSLESS = ("rejection", "match")
WRONG = tuple(rule for rule in RULES if rule not in LOSSLESS)
DRAWS = 40_000


@st.composite
def rows(draw_, count=2):
    """Draw ``count`` distributions over the same vocabulary. Some tokens may have the probability 0."""
    size = draw_(st.integers(2, 12))
    weights = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1)), min_size=size, max_size=size).filter(any)
    return [np.array(w) / sum(w) for w in draw_(st.lists(weights, min_size=count, max_size=count))]


@given(rows(), st.sampled_from(LOSSLESS))
def test_the_lossless_rules_say_what_the_target_says(pq, rule):
    p, q = pq
    assert np.allclose(emitted(p, q, rule), p, atol=1e-12)


@given(rows())
def test_no_lossless_rule_keeps_more_than_rejection(pq):
    p, q = pq
    assert np.isclose(acceptance(p, q), np.minimum(p, q).sum())
    assert np.isclose(acceptance(p, q), 1 - total_variation(p, q))
    assert acceptance(p, q, "match") <= acceptance(p, q) + 1e-12


@given(rows(), st.integers(0, 11))
def test_a_greedy_draft_is_kept_as_often_as_the_target_says_it(pq, token):
    p, _ = pq
    token %= len(p)
    q = one_hot(np.array(token), len(p))
    assert np.isclose(acceptance(p, q), p[token])
    assert np.allclose(emitted(p, q), p, atol=1e-12)


@pytest.mark.parametrize("rule", WRONG)
def test_each_wrong_rule_is_wrong(rule):
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.full(8, 0.4), size=(2, 200))
    assert total_variation(emitted(p, q, rule), p).mean() > 0.05


@pytest.mark.parametrize("rule", LOSSLESS)
def test_a_perfect_draft_is_always_kept_by_rejection_only(rule):
    p = np.array([0.5, 0.3, 0.2])
    kept = acceptance(p, p, rule)
    assert np.isclose(kept, 1) if rule == "rejection" else kept < 0.5


def cycles(rule, gamma=2, vocabulary=5, seed=11):
    """Run ``DRAWS`` cycles of speculative decoding, all from the same context.

    The distribution of each token after the first depends on the token before it. Return how often each sequence came
    out, the probability of each sequence under the target alone, and what ``verify`` returned for the cycles.
    """
    rng = np.random.default_rng(seed)
    first_p, first_q = rng.dirichlet(np.full(vocabulary, 0.7), size=2)
    next_p, next_q = rng.dirichlet(np.full(vocabulary, 0.7), size=(2, vocabulary))
    drafted = np.empty((DRAWS, gamma), dtype=np.int64)
    p = np.empty((DRAWS, gamma + 1, vocabulary))
    q = np.empty((DRAWS, gamma, vocabulary))
    p[:, 0], q[:, 0] = first_p, first_q
    for place in range(gamma):
        drafted[:, place] = draw(q[:, place], rng.random(DRAWS))
        p[:, place + 1] = next_p[drafted[:, place]]
        if place + 1 < gamma:
            q[:, place + 1] = next_q[drafted[:, place]]
    verified = verify(p, q, drafted, chance=rng.random((DRAWS, gamma)), fresh=rng.random(DRAWS), rule=rule)
    # The target alone generates the positions that the cycle did not reach, so that every sequence is complete.
    said = verified.tokens.copy()
    for place in range(1, gamma + 1):
        missing = said[:, place] == NOTHING
        said[missing, place] = draw(next_p[said[missing, place - 1]], rng.random(int(missing.sum())))
    joint = first_p[:, None, None] * next_p[:, :, None] * next_p[None, :, :]
    counts = np.zeros_like(joint)
    np.add.at(counts, tuple(said[:, : gamma + 1].T), 1)
    return counts, joint, verified


@pytest.mark.parametrize("rule", LOSSLESS)
def test_drawn_sequences_are_the_targets(rule):
    counts, joint, _ = cycles(rule)
    assert chi_square(counts, joint)[2] > 0.01


@pytest.mark.parametrize("rule", WRONG)
def test_the_same_test_catches_the_wrong_rules(rule):
    counts, joint, _ = cycles(rule)
    assert chi_square(counts, joint)[2] < 1e-6


def test_a_cycle_says_one_token_more_than_it_kept():
    *_, verified = cycles("rejection")
    said = (verified.tokens != NOTHING).sum(axis=1)
    assert (said == verified.accepted + 1).all()
    assert set(np.unique(verified.accepted)) == {0, 1, 2}


def test_what_is_no_distribution_is_refused():
    p = np.full((1, 2, 3), 1 / 3)
    q = np.full((1, 1, 3), 1 / 2)
    drafted, chance, fresh = np.zeros((1, 1), dtype=np.int64), np.zeros((1, 1)), np.zeros(1)
    with pytest.raises(ValueError, match="q must hold probabilities"):
        verify(p, q, drafted, chance=chance, fresh=fresh)
    with pytest.raises(ValueError, match="one place shorter"):
        verify(p, p, drafted, chance=chance, fresh=fresh)


def test_the_statistics_themselves():
    # Tables of the chi-square distribution: 5 % and 0.1 % points of 1, 10 and 100 degrees of freedom.
    for freedom, point, tail in ((1, 3.8415, 0.05), (10, 18.307, 0.05), (100, 124.342, 0.05), (10, 29.588, 0.001)):
        assert upper_gamma(freedom / 2, point / 2) == pytest.approx(tail, rel=1e-3)
    rng = np.random.default_rng(1)
    fair = rng.multinomial(10_000, np.full(20, 0.05))
    assert chi_square(fair, np.full(20, 0.05))[2] > 0.01
    assert chi_square(fair, np.linspace(1, 1.5, 20) / np.linspace(1, 1.5, 20).sum())[2] < 1e-6
    assert chi_square([5, 5], [1, 0])[2] == 0
