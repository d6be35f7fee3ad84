"""Test how a text is divided into slices for Presidio's recognizers, and what they find in the slices."""

import random
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presidio_analyzer.predefined_recognizers import PhoneRecognizer

from services.policy.engines.presidio import (
    DENSE_SLICE_CHARS,
    OVERLAP_CHARS,
    PHONE_REGIONS,
    SLICE_CHARS,
    Presidio,
    slices,
    without_contained,
)
from services.policy.rulings import FoundSpan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@given(st.lists(st.sampled_from(["a word and ", "0171 2345678 ", "9"]), max_size=400).map("".join))
def test_slices_cover_the_text_and_overlap(text):
    each = list(slices(text))
    assert each[0][0] == 0
    assert each[-1][1] >= len(text)
    assert all(begin == end - OVERLAP_CHARS for (_, end, _), (begin, _, _) in pairwise(each))
    assert all(end - begin == (DENSE_SLICE_CHARS if dense else SLICE_CHARS) for begin, end, dense in each)


def test_text_of_digits_is_read_in_shorter_slices():
    assert list(slices("prose " * 150)) == [(0, 704, False), (640, 1344, False)]
    assert list(slices("0123456789 " * 30)) == [(0, 224, True), (160, 384, True)]


async def test_text_of_digits_is_read_in_steps():
    presidio, turns = Presidio(), 0

    @asynccontextmanager
    async def turn():
        nonlocal turns
        turns += 1
        yield

    await presidio.find("prose " * 100, turn)
    assert turns == 1
    await presidio.find("0123456789 " * 20, turn)
    assert turns == 1 + len(PHONE_REGIONS) + 1


async def test_steps_find_what_presidio_finds_for_all_countries_at_once():
    numbers = [
        "020 7946 0958",
        "030 901820",
        "(415) 555-2671",
        "+39 06 698 12345",
        "11 98765 4321",
        "1995",
        "44051401359",
    ]
    chosen = random.Random(5)
    whole = PhoneRecognizer(supported_regions=PHONE_REGIONS, leniency=1)
    for _ in range(20):
        text = " or ".join(chosen.choices(numbers, k=20))[:DENSE_SLICE_CHARS]
        assert [one[2] for one in slices(text)] == [True]
        phones = [one for one in await Presidio().find(text) if one.category == "phone"]
        expected = whole.analyze(text, ["PHONE_NUMBER"])
        assert phones
        assert {(one.start, one.end) for one in phones} == {(one.start, one.end) for one in expected}


async def test_number_is_found_wherever_it_stands_in_digits():
    presidio = Presidio()
    for before in range(0, DENSE_SLICE_CHARS, 7):
        text = "1995 " * 40 + "." * before + " Ring 020 7946 0958 today. " + "1995 " * 40
        assert "020 7946 0958" in {text[one.start : one.end] for one in await presidio.find(text)}


def test_a_number_within_a_longer_one_of_the_same_rule_is_not_told():
    whole, end, twice = (FoundSpan("presidio/phone_number", "phone", *at) for at in ((5, 20), (8, 20), (5, 20)))
    other = FoundSpan("presidio/es_nif", "national_id", 8, 17)
    beside = FoundSpan("presidio/phone_number", "phone", 18, 30)
    assert list(without_contained([end, beside, whole, other, twice])) == [whole, other, beside]
