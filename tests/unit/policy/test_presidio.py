"""The slices that Presidio's recognizers read."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.policy.engines.presidio import DENSE_SLICE_CHARS, OVERLAP_CHARS, SLICE_CHARS, Presidio, slices

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@given(st.lists(st.sampled_from(["a word and ", "0171 2345678 ", "9"]), max_size=400).map("".join))
def test_slices_cover_the_text_and_overlap(text):
    each = list(slices(text))
    assert each[0][0] == 0
    assert each[-1][1] >= len(text)
    assert all(begin == end - OVERLAP_CHARS for (_, end), (begin, _) in pairwise(each))
    assert all(end - begin in {SLICE_CHARS, DENSE_SLICE_CHARS} for begin, end in each)


def test_text_of_digits_is_read_in_shorter_slices():
    assert [end - begin for begin, end in slices("prose " * 300)] == [SLICE_CHARS] * 3
    *most, last = [end - begin for begin, end in slices("0123456789 " * 120)]
    assert set(most) == {DENSE_SLICE_CHARS}
    assert last in {DENSE_SLICE_CHARS, SLICE_CHARS}


async def test_number_is_found_wherever_it_stands_in_digits():
    presidio = Presidio()
    for before in range(0, DENSE_SLICE_CHARS, 7):
        text = "1995 " * 40 + "." * before + " Ring 020 7946 0958 today. " + "1995 " * 40
        assert "020 7946 0958" in {text[one.start : one.end] for one in await presidio.find(text)}
