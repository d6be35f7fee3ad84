"""Test that the matcher finds the same matches as the reference in oracle.py.

The matches do not depend on how the text is cut into pieces. Further text neither adds nor removes a match that ends
before ``Scanner.undecided``.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.policy import Automaton, Rule, Scanner, find_all, load
from services.policy.load import rule_of
from services.policy.matching import automaton as machine_module
from services.policy.matching.regex import parse, words
from services.policy.source.document import PatternFile
from services.policy.source.toml import read_toml
from tests.support.examples import examples
from tests.unit.policy.oracle import Plain, allowed, cuts, matches

ROOT = Path(__file__).parents[3]
POLICIES = ("default", "strict")

PLAIN = [
    Plain("pair", "aa"),
    Plain("run", "a{2,5}", "word"),
    Plain("choice", "ab|abc|b{1,3}c?", "none"),
    Plain("number", r"\d{2,4}(-\d{1,2}){0,2}", "digit"),
    Plain("address", r"[a-c.]{1,6}@[a-c]{1,4}\.[a-c]{1,3}", "token"),
    Plain("spelled", "ab?c{0,2}a", "word", ignore_case=True),
    Plain("key", "[abc]-[a-c1-4]{2,9}", "start"),
    Plain("nested", "(a(b{0,2}c){1,3}){1,2}", "none"),
    Plain("random", "[a-c1-4]{8,20}", "start", "entropy"),
    Plain("card", r"\d( ?\d){11,14}", "digit", "luhn"),
]

BY_NAME = {plain.name: plain for plain in PLAIN}

TEXT = st.text(alphabet="aAbBcC.@-_ 1234", max_size=40)


def rule(plain):
    return Rule(
        name=plain.name,
        category=plain.name,
        node=parse(plain.regex, ignore_case=plain.ignore_case),
        guard=plain.guard,
        validator=plain.validator,
    )


MACHINE = Automaton([rule(plain) for plain in PLAIN])


def scan(machine, pieces, prompt=()):
    scanner = Scanner(machine, prompt)
    found = [match for piece in pieces for match in scanner.feed(piece)]
    found += scanner.finish()
    return [(match.rule.name, match.start, match.end) for match in found]


@given(text=TEXT, size=st.integers(1, 9))
@settings(max_examples=examples(600), deadline=None)
def test_longest_matches_are_the_oracles(text, size):
    expected = sorted(match for plain in PLAIN for match in matches(plain, text))
    assert sorted(scan(MACHINE, cuts(text, size))) == expected


@given(text=TEXT, size=st.integers(1, 9))
@settings(max_examples=examples(600), deadline=None)
def test_prompt_matches_are_the_shortest_of_the_first_to_be_certain(text, size):
    whole = scan(MACHINE, [text], range(len(PLAIN)))
    assert scan(MACHINE, cuts(text, size), range(len(PLAIN))) == whole
    ends = {}
    for name, start, end in whole:
        assert end > start >= ends.get(name, 0), "matches of a rule do not overlap"
        ends[name] = end
        assert allowed(BY_NAME[name], text, start, end)
        shorter = [stop for stop in range(start + 1, end) if allowed(BY_NAME[name], text, start, stop)]
        assert not shorter


@given(text=TEXT, size=st.integers(1, 9))
@settings(max_examples=examples(600), deadline=None)
def test_the_order_of_certainty_does_not_depend_on_the_pieces(text, size):
    assert scan(MACHINE, cuts(text, size)) == scan(MACHINE, list(text))


@given(text=TEXT, at=st.integers(0, 40))
@settings(max_examples=examples(600), deadline=None)
def test_what_is_decided_stays_decided(text, at):
    scanner = Scanner(MACHINE)
    known = {(m.rule.name, m.start, m.end) for m in scanner.feed(text[:at])}
    decided = scanner.undecided
    assert decided >= min(at, len(text)) - MACHINE.max_chars
    everything = {match for plain in PLAIN for match in matches(plain, text)}
    assert {match for match in everything if match[1] < decided} == {match for match in known if match[1] < decided}


def test_the_table_may_be_begun_anew_at_any_time(monkeypatch):
    text = "aabcab 12-34 abc.c@ab.ca aaaa" * 3
    expected = scan(MACHINE, [text])
    monkeypatch.setattr(machine_module, "MAX_CELLS", 5)
    assert scan(Automaton([rule(plain) for plain in PLAIN]), cuts(text, 3)) == expected


def test_beginnings_inside_a_match_are_let_go():
    """A possible match that begins inside an existing match is dropped at once, because matches do not overlap."""
    machine = Automaton([Rule(name="key", category="key", node=parse("k[a-k]{5,90}"))])
    scanner = Scanner(machine)
    for _ in range(80):
        scanner.feed("k")
        assert len(scanner._starts) <= 7
    assert [(match.start, match.end) for match in scanner.finish()] == [(0, 80)]
    assert scanner.work > 0


def test_ordinary_text_is_no_extra_work():
    scanner = Scanner(load(ROOT / "policies/default").automaton)
    scanner.feed("Boil the water first; add salt, pepper and a bay leaf (or two). Then wait for a quarter of an hour. ")
    assert scanner.work <= 10


def test_words_share_their_beginnings_and_match_like_a_choice():
    listed = ["tea", "team", "teapot", "tear gas", "x"]
    machine = Automaton([Rule(name="w", category="w", node=words(listed, ignore_case=True), guard="word")])
    text = "Tea, TEAMS, teapot; tear gas! teas xx x"
    assert [text[m.start : m.end] for m in find_all(machine, text)] == ["Tea", "teapot", "tear gas", "x"]


def test_a_long_text_keeps_no_more_than_its_tail():
    scanner = Scanner(MACHINE)
    for _ in range(2_000):
        scanner.feed("abc aabb 12-3 ")
    assert len(scanner._tail) < 4_096
    assert len(scanner._starts) <= MACHINE.max_chars


def samples():
    for name in POLICIES:
        for path in sorted((ROOT / "policies" / name / "patterns").glob("*.toml")):
            for spec in read_toml(path.name, path.read_bytes(), PatternFile).pattern:
                for example in spec.examples:
                    yield pytest.param(spec, example, id=f"{name}:{spec.name}")


@pytest.mark.parametrize(("spec", "example"), list(samples()))
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_sample_is_found_wherever_it_is_cut(spec, example, size):
    """Each example of each pattern is found, however the text is cut into pieces.

    The first piece ends at any position. The pieces after it have ``size`` characters, or fewer at the end of the text.
    """
    machine = Automaton([rule_of(spec)])
    text = f"Yes, ({example}) and so on."
    expected = [(spec.name, 6, 6 + len(example))]
    assert scan(machine, [text]) == expected
    for first in range(1, len(text)):
        assert scan(machine, [text[:first], *cuts(text[first:], size)]) == expected


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_all_patterns_together_find_the_same_wherever_a_sample_is_cut(name, size):
    policy = load(ROOT / "policies" / name)
    for spec, example in (param.values for param in samples()):
        text = f"So: {example} - then"
        expected = scan(policy.automaton, [text])
        assert spec.name in {found for found, _, _ in expected}
        for first in range(1, min(len(text), 64)):
            assert scan(policy.automaton, [text[:first], *cuts(text[first:], size)]) == expected


CARD = "4111 1111 1111 1111"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("before", ["", "0006 ", "12-", "0006 0014 9 ", "4 4 4 4 "])
@pytest.mark.parametrize("after", ["", " 0006", "-12 7"])
def test_no_digit_of_a_card_among_other_digits_is_left(name, before, after):
    machine = load(ROOT / "policies" / name).automaton
    run = before + CARD + after
    text = f"Pay {run}, please."
    for size in range(1, len(text) + 1):
        spans = [(start, end) for rule, start, end in scan(machine, cuts(text, size)) if rule == "pii/payment_card"]
        assert spans == [(4, 4 + len(run))], size
