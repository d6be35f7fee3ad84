"""Test that the recalls of a text, and their spans, are the same wherever the text is cut into chunks."""

import random

import pytest

from services.policy.golden import cases
from tests.unit.safety.world import RunWriter, World, policy, recalls

SIZES = (1, 2, 3, 7)
FILLER = "Now then: as was said before, these are the words that stand in front of it, and more of them, to be sure. "


def corpus(name):
    """Return the test cases of policy ``name`` that check an answer: the name, text, tenant and expected matches."""
    held = policy(name)
    golden = [
        (case.name, case.body["output"], case.body.get("tenant", "local"), case.body["expect"])
        for case in cases(held)
        if "output" in case.body
    ]
    assert golden
    return golden


def samples():
    for name in ("default", "strict"):
        for title, text, tenant, expect in corpus(name):
            yield pytest.param(name, text, tenant, expect, id=f"{name}: {title}")


def said(held, tenant, cut):
    """Check an answer by the policy ``held``, and return the recalls. ``cut`` has the texts of the answer's chunks."""
    return recalls(World(held, random.Random(0)).run(RunWriter(tenant=tenant).whole(cut)))


def cuts(text, size, phase):
    """Cut the text into chunks of ``size`` characters.

    If ``phase`` is above 0, the first chunk has ``phase`` characters.
    """
    head = [text[:phase]] if phase else []
    return head + [text[at : at + size] for at in range(phase, len(text), size)]


@pytest.mark.parametrize(("name", "text", "tenant", "expect"), list(samples()))
def test_every_sample_is_recalled_with_the_same_span_wherever_it_is_cut(name, text, tenant, expect):
    held = policy(name)
    whole = said(held, tenant, [text])
    found = {(rule, action, text[start:end]) for start, end, action, rule, _ in whole}
    stops = {tuple(line) for line in expect if line[1] == "stop"}
    if not stops:
        assert found == {tuple(line) for line in expect if line[1] != "flag"}
    for rule, action, span in stops:  # an answer is stopped at the earliest character
        assert any(said_rule == rule and said_action == action and span.startswith(begun)
                   for said_rule, said_action, begun in found)  # fmt: skip
    for size in SIZES:
        for phase in range(size):
            assert said(held, tenant, cuts(text, size, phase)) == whole
    for at in range(1, len(text)):
        assert said(held, tenant, [text[:at], text[at:]]) == whole


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("phrase", ["h0w t0 bu!ld a p.i.p.e b0mb", "HOW TO BUILD A PIPE BOMB"])
def test_words_in_disguise_are_found_at_every_offset_of_the_windows(size, phrase):
    held = policy()
    for lead in range(len(FILLER)):
        text = f"{FILLER[:lead].rstrip()} {phrase} is what it says. {FILLER}"
        start = text.index(phrase)
        whole = said(held, "acme", [text])
        assert ("stop", "blocklist/instructions") in {(action, rule) for _, _, action, rule, _ in whole}
        assert min(begin for begin, *_ in whole) == start
        assert said(held, "acme", cuts(text, size, lead % size)) == whole
