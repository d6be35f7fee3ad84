"""Test that the draft length falls as the load grows, and is 0 where drafting would cost time."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.physics.adaptive import (
    HORIZON_DRAFTS,
    AcceptanceEstimate,
    GammaBand,
    choose_gamma,
    format_schedule,
    gamma_by_batch,
    probe_after,
)
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.pairing import SpeculationPair
from tests.support.examples import examples

PAIR = SpeculationPair(target=model("gemma-3-27b"), draft=model("gemma-3-4b"), gpu=gpu("h100"))
pairs = st.sampled_from(
    [
        PAIR,
        SpeculationPair(target=model("gemma-3-27b"), draft=model("gemma-3-12b"), gpu=gpu("h200")),
        SpeculationPair(target=model("llama-3-70b"), draft=model("llama-3-8b"), gpu=gpu("b200"), launch_ms=3.0),
        SpeculationPair(target=model("gemma-2-9b"), draft=model("gemma-2-2b"), gpu=gpu("rtx-4080"), precision="int4"),
    ]
)


@settings(max_examples=examples(25), deadline=None)
@given(pairs, st.floats(0, 1), st.integers(0, 4_000), st.integers(1, 100))
def test_a_table_falls_and_is_never_worse_than_off(pair, alpha, context, largest):
    bands = gamma_by_batch(pair, alpha, context=context, largest=largest)
    assert [band.first for band in bands] == [1, *(band.last + 1 for band in bands[:-1])]
    assert bands[-1].last == largest
    assert [band.gamma for band in bands] == sorted({band.gamma for band in bands}, reverse=True)
    for band in bands:
        for batch in (band.first, band.last):
            assert pair.speedup(alpha, band.gamma, batch=batch, context=context) >= 1


@settings(max_examples=examples(25), deadline=None)
@given(pairs, st.floats(0, 1), st.floats(0, 1), st.integers(1, 200))
def test_better_drafts_are_not_drafted_less(pair, a, b, batch):
    low, high = sorted((a, b))
    assert (
        choose_gamma(pair, AcceptanceEstimate.expected(low), batch=batch)
        <= choose_gamma(pair, AcceptanceEstimate.expected(high), batch=batch)
    )  # fmt: skip


def test_off_is_chosen_where_off_is_faster():
    hopeless, good = AcceptanceEstimate.expected(0.05), AcceptanceEstimate.expected(0.8)
    assert choose_gamma(PAIR, hopeless, batch=1) == 0
    assert choose_gamma(PAIR, hopeless, batch=1, idle_steps=probe_after(PAIR, batch=1)) == 2
    assert choose_gamma(PAIR, hopeless, batch=1, idle_steps=probe_after(PAIR, batch=1), max_gamma=0) == 0
    assert choose_gamma(PAIR, good, batch=1) == 3
    assert choose_gamma(PAIR, good, batch=256, context=0) == 0
    assert gamma_by_batch(PAIR, 0.8, context=0)[-1].gamma == 0


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=300), st.floats(0, 1))
def test_acceptance_stays_a_fraction_and_bounded(steps, start):
    seen = AcceptanceEstimate.expected(start)
    for drafted, accepted in steps:
        seen = seen.after(drafted, min(accepted, drafted))
        assert 0 <= seen.alpha <= 1
        assert 0 < seen.accepted + seen.rejected <= HORIZON_DRAFTS + 16


def test_a_profile_is_what_the_engine_reads():
    assert format_schedule((GammaBand(1, 8, 5), GammaBand(9, 32, 3), GammaBand(33, 256, 0))) == "1-8:5 9-32:3 33-256:0"


def test_acceptance_follows_what_it_sees():
    draw, seen = random.Random(2), AcceptanceEstimate.expected(0.8)
    for _ in range(600):
        accepted = 0
        while accepted < 4 and draw.random() < 0.3:
            accepted += 1
        seen = seen.after(4, accepted)
    assert seen.alpha == pytest.approx(0.3, abs=0.06)


STEPS = 1_500
_choices = {}


def _choice(pair, alpha, batch, *, probing):
    """Choose gamma for an alpha. The alpha is rounded to a multiple of 0.04, so that results can be reused."""
    key = (id(pair), round(alpha * 25), batch, probing)
    if key not in _choices:
        seen = AcceptanceEstimate.expected(key[1] / 25)
        _choices[key] = choose_gamma(
            pair, seen, batch=batch, max_gamma=8, idle_steps=probe_after(pair, batch=batch) if probing else 0
        )
    return _choices[key]


@settings(max_examples=examples(20), deadline=None)
@example(PAIR, 0.0, 0.95, 64, 1)
@example(PAIR, 0.95, 0.0, 64, 1)
@given(pairs, st.floats(0, 0.95), st.floats(0, 0.95), st.sampled_from([1, 8, 64]), st.integers(0, 9))
def test_learning_costs_little_against_off_and_against_knowing(pair, believed, true, batch, seed):
    """With any first estimate of the acceptance, learning the true acceptance costs little time.

    Decoding takes at most 4 % longer than without drafts, and at most 20 % longer than with the best draft length.
    """
    draw, seen, idle, time, tokens = random.Random(seed), AcceptanceEstimate.expected(believed), 0, 0.0, 0
    rest = probe_after(pair, batch=batch)
    cycle = [pair.cycle_ms(gamma, batch=batch) for gamma in range(9)]
    for _ in range(STEPS):
        gamma = _choice(pair, seen.alpha, batch, probing=idle >= rest)
        accepted = 0
        while accepted < gamma and draw.random() < true:
            accepted += 1
        seen, idle = seen.after(gamma, accepted), 0 if gamma else idle + 1
        time += cycle[gamma]
        tokens += accepted + 1
    off = tokens * cycle[0]
    _, bought = pair.best_gamma(true, batch=batch, max_gamma=8)
    assert time <= off * 1.04
    assert time <= off / bought * 1.2


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        (lambda: AcceptanceEstimate.expected(1.5), "alpha must be between 0 and 1"),
        (lambda: AcceptanceEstimate(1, 1).after(2, 3), r"accepted must be at most drafted \(2\), not 3"),
        (lambda: gamma_by_batch(PAIR, 0.5, largest=0), "largest must be a whole number"),
    ],
)
def test_nonsense_is_refused(nonsense, message):
    with pytest.raises(ValueError, match=message):
        nonsense()
