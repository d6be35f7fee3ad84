import uuid

from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import is_uuid7, time_ms, uuid7
from schemas.trace import is_traceparent, traceparent_for

MOMENTS = st.integers(0, 2**48 - 1)


@given(MOMENTS, st.integers(0, 2**74 - 1))
def test_an_id_is_a_uuid7_that_tells_its_time(now_ms, random_bits):
    made = uuid7(now_ms, random_bits)
    parsed = uuid.UUID(made)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert is_uuid7(made)
    assert time_ms(made) == now_ms


@given(MOMENTS, MOMENTS, st.integers(0, 2**74 - 1), st.integers(0, 2**74 - 1))
def test_ids_sort_by_time_and_different_bits_make_different_ids(one_ms, other_ms, one_bits, other_bits):
    one, other = uuid7(one_ms, one_bits), uuid7(other_ms, other_bits)
    assert (one == other) == ((one_ms, one_bits) == (other_ms, other_bits))
    if one_ms != other_ms:
        assert (one < other) == (one_ms < other_ms)


def test_what_is_no_uuid7():
    made = uuid7(1, 1)
    for text in (
        "",
        made.upper()[:-1] + "A",
        made.replace("-", ""),
        str(uuid.UUID(int=0)),
        made + "0",
        f" {made}",
        made + "\n",
    ):
        assert not is_uuid7(text), text


@given(MOMENTS, st.integers(0, 2**74 - 1), st.integers(0, 2**64))
def test_a_trace_is_the_request(now_ms, bits, span_bits):
    request_id = uuid7(now_ms, bits)
    header = traceparent_for(request_id, span_bits)
    assert is_traceparent(header)
    assert header.split("-")[1] == request_id.replace("-", "")


def test_what_is_no_traceparent():
    good = traceparent_for(uuid7(1, 1), 1)
    for text in (
        "",
        good + "\n",
        good.replace("7", "G"),
        "01" + good[2:],
        f"00-{'0' * 32}-{'1' * 16}-01",
        f"00-{'1' * 32}-{'0' * 16}-01",
    ):
        assert not is_traceparent(text), text
