"""Test which changes the search of ``railbus tune`` tries, in which order, and when the search ends."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.tuner.decide import Trial
from services.tuner.experiment import (
    MIN_REQUESTS,
    UNCHANGED,
    ExperimentError,
    Rules,
    SettingsChange,
    Size,
    parse_settings,
    parse_target,
    size,
)
from services.tuner.search import EXHAUSTED, Search
from tests.support.examples import examples
from tests.unit.tuner.simulated_loads import rounds


def change(name, **settings):
    return SettingsChange(name=name, settings=settings, item="batching")


def run(search, effects, *, seconds=1.0, seed=1):
    """Run the search with simulated measurements. Return the names of the changes that were tried.

    Args:
        effects: Dict from a change's name to the factor by which the change multiplies all times. A change that is
            not in the dict leaves all times as they are.
        seconds: How long each trial takes, in seconds.
    """
    rng, elapsed, tried = random.Random(seed), 0.0, []
    while (found := search.next(elapsed)) is not None:
        effect = effects.get(found.name, 1.0)
        measured = rounds(rng, 6, effect=effect, process=0.005, drift=0.01)
        search.record(Trial(change=found, base=dict(search.best), size=Size(rounds=6, load=16), rounds=measured))
        tried.append(found.name)
        elapsed += seconds
    return tried


def search(changes, **about):
    return Search(changes, **{"base": {"A": "0"}, "defaults": {"B": "1"}, "rules": Rules(), **about})


def test_kept_changes_add_up_and_later_ones_are_measured_on_top():
    one = search([change("a1", A="1"), change("b2", B="2"), change("a2", A="2")])
    tried = run(one, {"a1": 0.7, "a2": 0.7})
    assert tried == ["no change", "a1", "b2", "a2"]
    assert one.best == {"A": "2"}
    assert [each.trial.base for each in one.tried] == [{"A": "0"}, {"A": "1"}, {"A": "1"}]
    assert one.stopped == EXHAUSTED


def test_a_change_that_is_none_is_not_tried():
    one = search([change("same", A="0"), change("default", B="1"), change("other", B="2")])
    assert run(one, {}) == ["no change", "other"]
    assert set(one.skipped) == {"same", "default"}


def test_it_stops_when_the_targets_are_met():
    one = search([change(f"c{at}", A=f"{at}") for at in range(1, 6)], targets=[parse_target("answer_p50_ms=45")])
    assert run(one, {"c1": 0.8, "c2": 0.7, "c3": 0.9}) == ["no change", "c1", "c2"]
    assert one.stopped == "all targets are met"
    assert one.skipped["c5"] == "all targets are met"


def test_it_stops_when_the_budget_is_spent():
    one = search([change(f"c{at}", A=f"{at}") for at in range(1, 6)], budget_s=180)
    assert run(one, {}, seconds=60) == ["no change", "c1", "c2"]
    assert one.stopped == "the budget of 3 minutes is spent"
    assert one.skipped == dict.fromkeys(("c3", "c4", "c5"), one.stopped)


@settings(max_examples=examples(20))
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.5, 2.0), max_size=8), st.integers(0, 999))
def test_every_change_is_tried_once_or_has_a_reason(effects, seed):
    names = "abcdefgh"
    one = search([change(name, **{name.upper() + "X": "1"}) for name in names])
    tried = run(one, effects, seed=seed)
    assert tried[0] == UNCHANGED.name
    assert sorted([*tried[1:], *one.skipped]) == sorted(names)
    kept = {each.trial.change.name for each in one.tried if each.decision.kept}
    assert set(one.best) - {"A"} == {name.upper() + "X" for name in kept}
    assert not {name for name in names if effects.get(name, 1.0) > 1.0} & kept


def test_a_disturbed_machine_is_noticed():
    one = search([])
    one.record(Trial(change=UNCHANGED, base={}, size=Size(rounds=6, load=16),
                     rounds=rounds(random.Random(1), 6, effect=0.7)))  # fmt: skip
    assert one.is_disturbed()
    two = search([])
    run(two, {})
    assert not two.is_disturbed()


@given(
    st.integers(1, 20_000), st.integers(1, 100), st.none() | st.floats(0.1, 1e5), st.floats(0, 100), st.floats(0, 10)
)
@example(1, 1, 1.0, 0.0, 2.2250738585e-313)
@example(1_000, 4, 12.0, 4.0, 0.0)
def test_a_comparison_is_bounded_and_few_requests_have_a_reason(wanted, count, seconds, start_s, request_s):
    found = size(wanted=wanted, rounds=count, seconds=seconds, start_s=start_s, request_s=request_s)
    assert 3 <= found.rounds <= 64
    assert 4 <= found.load <= 2_000
    assert bool(found.reason) == (found.requests < MIN_REQUESTS)


def test_without_a_budget_there_are_enough_requests():
    assert size(wanted=1_000, rounds=8, seconds=None, start_s=9, request_s=1).requests >= 1_000


@pytest.mark.parametrize("text", ["first_token_p99_ms", "first_token_p99_ms=", "first_token_p99_ms=-1", "speed=3"])
def test_a_wrong_target_names_the_remedy(text):
    with pytest.raises(ExperimentError, match=r"such as|choose one of"):
        parse_target(text)


def test_settings_are_pairs():
    assert parse_settings(["RAILBUS_A=b=c", "VLLM_X="]) == {"RAILBUS_A": "b=c", "VLLM_X": ""}
    with pytest.raises(ExperimentError, match="RAILBUS_LLAMA_THREADS=2"):
        parse_settings(["PATH=/x"])
