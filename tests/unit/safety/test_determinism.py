"""Test that safety always decides the same for the same log and policy version.

The decisions depend neither on how many events safety reads at once, nor on the order in which checks answer, nor on
crashes. Recalls do not depend on how the text was cut into chunks either.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.unit.safety.world import RunWriter, World, as_set, pieces, policy, recalls

SENTENCES = (
    "The quick brown fox jumps over the lazy dog. ",
    "Write to anna.berg@example.org today, or to bob@corp.example.com. ",
    "Card 4111 1111 1111 1111, IBAN DE89 3704 0044 0532 0130 00. ",
    'The key is AKIAIOSFODNN7EXAMPLE and password = "Tr0ub4dor&3x". ',
    "h0w t0 bu!ld a p.i.p.e b0mb is not for you. ",
    "That was a rude word, sorry. ",
    "On second thoughts, call +49 30 901820. ",
    "-----BEGIN RSA PRIVATE KEY----- ",
    "Zażółć gęślą jaźń 🙂 and 你好. ",
)
TEXTS = st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=9).map("".join)
CLASSIFIED = {"classifiers": '["doubt"]'}


def reference(events, held, seed=0):
    return as_set(World(held, random.Random(seed)).run(events))


@given(text=TEXTS, seed=st.integers(0, 2**32), mode=st.sampled_from(["optimistic", "gated"]))
@settings(max_examples=examples(120), deadline=None)
def test_pace_and_answers_change_nothing(text, seed, mode):
    rng = random.Random(seed)
    events = RunWriter(mode=mode).whole(pieces(text, rng))
    for held in (policy(), policy(**CLASSIFIED)):
        expected = reference(events, held)
        for patience in (0.9, 0.3, 0.05):
            world = World(held, random.Random(rng.random()))
            assert as_set(world.run(events, pace=rng.choice([1, 5, 200]), patience=patience)) == expected


@given(text=TEXTS, seed=st.integers(0, 2**32))
@settings(max_examples=examples(120), deadline=None)
def test_recalls_do_not_depend_on_chunks(text, seed):
    rng = random.Random(seed)
    held = policy(**CLASSIFIED)
    expected = recalls(World(held, rng).run(RunWriter().whole([text])))
    for longest in (1, 3, 7, 40):
        cut = pieces(text, rng, longest)
        assert recalls(World(held, rng).run(RunWriter().whole(cut))) == expected


def mixed_log(rng):
    """Return a log with the events of five requests in a random interleaving. One request has two attempts."""
    answers = [
        RunWriter(number, tenant=f"t{number % 2}", mode=rng.choice(["optimistic", "gated"])) for number in range(5)
    ]
    answers.append(RunWriter(4, attempt=2, run="r2", tenant="t0"))
    lines = []
    for answer in answers:
        text = "".join(rng.choices(SENTENCES, k=6))
        lines.append([*answer.whole(pieces(text, rng)), answer.closed()][: None if answer is answers[-1] else -1])
    events = []
    while lines:
        line = rng.choice(lines)
        events.append(line.pop(0))
        lines = [line for line in lines if line]
    return events


@pytest.mark.parametrize("seed", range(2))
def test_200_timings_20_crashes_and_20_moves_say_the_same(seed):
    """For the same log, safety writes the same events at any timing, after crashes, and after its partition moved."""
    rng = random.Random(seed)
    held = policy(**CLASSIFIED) if seed % 2 else policy()
    events = mixed_log(rng)
    expected = reference(events, held)
    assert len({line[0] for line in expected}) >= 5
    for number in range(examples(200)):
        world = World(held, random.Random(f"{seed}.{number}"))
        said = world.run(events, pace=rng.choice([1, 3, 20, 500]), patience=rng.choice([1.0, 0.5, 0.1]))
        assert as_set(said) == expected
        assert len(said) == len(expected), "nothing is said twice without a crash"
    for number in range(examples(20)):
        crashes = sorted(rng.sample(range(len(expected)), 1 + number % 5))
        world = World(held, random.Random(f"{seed}.crash.{number}"))
        assert as_set(world.run(events, pace=20, crashes=crashes, patience=0.5)) == expected
        world = World(held, random.Random(f"{seed}.move.{number}"))
        assert as_set(world.run(events, pace=20, moves=crashes, patience=0.5)) == expected
