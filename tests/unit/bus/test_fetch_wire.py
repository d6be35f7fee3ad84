"""Our Fetch is Kafka's: aiokafka's own schemas read what we write, and we read what they write."""

from io import BytesIO

import pytest
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.fetch import FetchRequest_v4, FetchResponse_v4
from hypothesis import given
from hypothesis import strategies as st

from services.bus.read.fetch_wire import FetchCall, PartitionData, decode, encode

topics = st.text("abc.é", min_size=1, max_size=20)
partitions = st.tuples(topics, st.integers(0, 2**31 - 1))
sizes = st.integers(0, 2**31 - 1)


@given(st.dictionaries(partitions, st.integers(0, 2**62), max_size=6), sizes, sizes, sizes)
def test_aiokafka_reads_our_request(
    offsets: dict[tuple[str, int], int], wait_ms: int, most_bytes: int, most_bytes_each: int
) -> None:
    body = encode(offsets, wait_ms=wait_ms, most_bytes=most_bytes, most_bytes_each=most_bytes_each)
    read = FetchRequest_v4.decode(BytesIO(body))
    assert (read.replica_id, read.max_wait_time, read.min_bytes, read.max_bytes, read.isolation_level) == (
        -1,
        wait_ms,
        1,
        most_bytes,
        0,
    )
    asked = {(topic, number): (at, most) for topic, parts in read.topics for number, at, most in parts}
    assert asked == {partition: (at, most_bytes_each) for partition, at in offsets.items()}


answers = st.lists(
    st.tuples(
        topics,
        st.lists(
            st.tuples(
                st.integers(0, 1000),
                st.integers(-1, 100),
                st.integers(0, 2**62),
                st.integers(-1, 2**62),
                st.none() | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
                st.none() | st.binary(max_size=40),
            ),
            max_size=4,
        ),
    ),
    max_size=4,
)


@given(answers)
def test_we_read_aiokafkas_response(
    answer: list[tuple[str, list[tuple[int, int, int, int, object, bytes | None]]]],
) -> None:
    body = FetchResponse_v4(throttle_time_ms=0, topics=answer).encode()
    expected = [
        PartitionData(topic, number, error, end, records or b"")
        for topic, parts in answer
        for number, error, end, _, _, records in parts
    ]
    assert list(decode(body)) == expected


def test_the_header_is_aiokafkas() -> None:
    ours = FetchCall(b"").build_request_header(7, "bénch").encode()
    theirs = FetchRequest_v4(-1, 0, 0, 0, 0, []).build_request_header(correlation_id=7, client_id="bénch").encode()
    assert ours == theirs


def test_a_broker_that_does_not_speak_it_is_refused() -> None:
    call = FetchCall(b"")
    assert call.prepare({1: (4, 17)}) is call
    for versions in ({1: (5, 17)}, {1: (0, 3)}, {}):
        with pytest.raises(IncompatibleBrokerVersion):
            call.prepare(versions)
