import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.protocol.wire import MalformedRequest, Reader, Writer


@given(st.integers(-(2**15), 2**15 - 1), st.text(max_size=50), st.binary(max_size=50), st.lists(st.integers(0, 9)))
def test_what_is_written_is_read(number, text, blob, numbers):
    body = Writer().i16(number).string(text).blob(blob).string(None).boolean(number > 0)
    body = body.array(numbers, body.i64).done()
    reader = Reader(body)
    assert reader.i16() == number
    assert reader.string() == text
    assert reader.blob() == blob
    assert reader.nullable_string() is None
    assert reader.boolean() == (number > 0)
    assert reader.array(reader.i64) == numbers
    assert reader.pos == len(body)


@pytest.mark.parametrize("size", range(16))
def test_a_request_that_ends_early_is_malformed_wherever_it_ends(size):
    body = Writer().string("topic").i32(1).i32(2).i8(1).done()
    assert len(body) == 16
    reader = Reader(body[:size])
    with pytest.raises(MalformedRequest):
        (reader.string(), reader.i32(), reader.i32(), reader.i8())


def test_an_array_cannot_announce_more_items_than_there_are_bytes():
    reader = Reader(Writer().i32(2**31 - 1).done())
    with pytest.raises(MalformedRequest, match="2147483647 items"):
        reader.array(reader.i32)


def test_text_must_be_utf_8_and_not_null_where_null_means_nothing():
    with pytest.raises(MalformedRequest, match="UTF-8"):
        Reader(b"\x00\x02\xff\xfe").string()
    with pytest.raises(MalformedRequest, match="null"):
        Reader(b"\xff\xff").string()


def test_a_null_array_is_told_from_an_empty_one():
    assert Reader(b"\xff\xff\xff\xff").nullable_array(int) is None
    assert Reader(b"\0\0\0\0").nullable_array(int) == []
