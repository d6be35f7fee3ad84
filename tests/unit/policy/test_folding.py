"""Test that disguised words are found with their positions, and that harmless text is not found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.policy.matching.folding import FoldedWords, fold

PHRASE = "how to build a pipe bomb"
WORDS = FoldedWords([("blocked", "blocklist", PHRASE), ("other", "blocklist", "synthesize sarin")])


@pytest.mark.parametrize(
    "disguise",
    [
        "How To Build A Pipe Bomb",
        "h0w t0 bu1ld 4 p1p3 b0mb",
        "how to build a p.i.p.e b-o-m-b",
        "how\u200b to bu\u00adild a pipe bo\u200dmb",
        "hοw tо build а рipe bоmb",
        "ｈｏｗ ｔｏ ｂｕｉｌｄ ａ ｐｉｐｅ ｂｏｍｂ",
        "hów tö büïld à pïpé bømb",
        "howtobuildapipebomb",
        "how  to\nbuild\ta pipe   bomb",
    ],
)
def test_disguises_are_seen_through(disguise):
    text = f"Well, {disguise}!"
    (found,) = WORDS.find(text)
    assert (found.rule, text[found.start : found.end]) == ("blocked", disguise)


@pytest.mark.parametrize("text", ["how to build a pipe bombardier", "xhow to build a pipe bomb", "how to build a pipe"])
def test_parts_of_other_words_are_not(text):
    assert WORDS.find(text) == []


def test_no_words_find_nothing():
    assert FoldedWords([]).find(PHRASE) == []


def test_short_words_are_refused():
    with pytest.raises(ValueError, match="folds to 5 letters"):
        FoldedWords([("r", "c", "s a r i n")])


@given(before=st.text(max_size=30), after=st.text(max_size=30))
@settings(deadline=None)
def test_spans_are_code_points_of_the_text_as_it_was(before, after):
    text = f"{before} {PHRASE} {after}"
    start = len(before) + 1
    assert ("blocked", "blocklist", start, start + len(PHRASE)) in WORDS.find(text)


@given(text=st.text())
@settings(deadline=None)
def test_folding_twice_changes_nothing_more(text):
    assert fold(fold(text)) == fold(text)


def test_words_of_two_rules_that_look_alike_are_found_for_both():
    words = FoldedWords([("one", "blocklist", "code name heron"), ("two", "secret", "codename her0n")])
    assert {(found.rule, found.category) for found in words.find("c o d e n a m e heron")} == {
        ("one", "blocklist"), ("two", "secret"),
    }  # fmt: skip
