"""Test that each match of an accepted pattern has a limited length, and that a refusal names a remedy."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.policy.matching import Automaton, Rule, find_all
from services.policy.matching.regex import BadPattern, longest, parse
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("pattern", "column", "remedy"),
    [
        ("a*", 2, "{0,64}"),
        ("ab+c", 3, "{1,64}"),
        ("a{3,}", 2, "{3,67}"),
        ("a{5,2}", 2, "ascending"),
        ("a{600}", 2, "at most 512"),
        ("a{0}", 2, "above 0"),
        ("a{x}", 2, "\\{"),
        ("(ab", 4, "not closed"),
        ("ab)", 3, "\\)"),
        ("[ab", 4, "too early"),
        ("[z-a]", 5, "later one"),
        ("[\\d-z]", 6, "later one"),
        ("^a", 1, "guard"),
        ("a$", 2, "guard"),
        ("\\bword", 1, "guard"),
        ("(?=a)b", 3, "guard"),
        ("(a)\\1", 4, "not part"),
        ("a{2}?", 5, "quantifier"),
        ("?a", 1, "nothing before"),
        ("\\x4", 3, "hexadecimal"),
        ("a\\", 3, "too early"),
    ],
)
def test_refusals_name_the_column_and_the_remedy(pattern, column, remedy):
    with pytest.raises(BadPattern) as refused:
        parse(pattern)
    assert str(refused.value).startswith(f"column {column} ")
    assert remedy in str(refused.value)


@pytest.mark.parametrize("pattern", ["a?", "(a?){3}", "(a|b?)", "()", "a{0,3}"])
def test_a_pattern_that_matches_nothing_is_refused(pattern):
    with pytest.raises(BadPattern, match="empty text"):
        Automaton([Rule(name="r", category="c", node=parse(pattern))])


def test_repeats_that_multiply_are_refused():
    with pytest.raises(BadPattern, match="4096 places"):
        Automaton([Rule(name="r", category="c", node=parse("((a{1,60}b){1,60}c){1,60}"))])


@pytest.mark.parametrize(
    ("pattern", "most"), [("abc", 3), ("a{2,5}b?", 6), ("(ab|c){2}", 4), ("[a-z]{1,64}@x", 66), ("(a(b){2}){0,3}c", 10)]
)
def test_bounds(pattern, most):
    assert longest(parse(pattern)) == most


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\x41\u00e9", "Aé"),
        (r"[\]\\\-^]{4}", "]\\-^"),
        (r"[]a]{2}", "]a"),
        (r"[^a\n]", "b"),
        (r"[a-]{2}", "a-"),
        (r"\t\.\{", "\t.{"),
        (r"(?:ab){2}", "abab"),
        (r"[\w.]{3}", "_.9"),
        (r"\S\D\W", "ab-"),
        (".", "é"),
    ],
)
def test_it_reads_like_re(pattern, text):
    assert re.fullmatch(pattern, text, re.ASCII)
    found = find_all(Automaton([Rule(name="r", category="c", node=parse(pattern))]), text)
    assert [(match.start, match.end) for match in found] == [(0, len(text))]


@given(pattern=st.text(alphabet="ab[]()|?{}23,\\.d-^", max_size=12))
@settings(max_examples=examples(1_500), deadline=None)
def test_every_accepted_pattern_is_valid_for_re_and_within_its_length(pattern):
    try:
        node = parse(pattern)
        machine = Automaton([Rule(name="r", category="c", node=node)])
    except BadPattern:
        return
    compiled = re.compile(pattern, re.ASCII)
    for text in ("a", "ab", "aab", "bb2", "a-b", "2,3", "abab", "ba.b"):
        for match in find_all(machine, text):
            assert compiled.fullmatch(text, match.start, match.end)
            assert match.end - match.start <= longest(node)
