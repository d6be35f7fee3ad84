"""Test that our Fetch requests can be read with aiokafka's schemas, and that we can read aiokafka's Fetch responses."""

from io import BytesIO

import pytest
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.fetch import FetchRequest_v7, FetchResponse_v7
from hypothesis import given
from hypothesis import strategies as st

from services.bus.read.fetch_wire import FetchAsk, FetchCall, PartitionData, decode, encode

topics = st.text("abc.é", min_size=1, max_size=20)
partitions = st.tuples(topics, st.integers(0, 2**31 - 1))
sizes = st.integers(0, 2**31 - 1)


asks = st.builds(
    FetchAsk,
    sizes,
    st.integers(-1, 2**31 - 1),
    st.dictionaries(partitions, st.integers(0, 2**62), max_size=6),
    st.lists(partitions, max_size=4, unique=True),
)


@given(asks, sizes, sizes, sizes)
def test_aiokafka_reads_our_request(ask: FetchAsk, wait_ms: int, most_bytes: int, most_bytes_each: int) -> None:
    body = encode(ask, wait_ms=wait_ms, most_bytes=most_bytes, most_bytes_each=most_bytes_each)
    read = FetchRequest_v7.decode(BytesIO(body))
    assert (read.replica_id, read.max_wait_time, read.min_bytes, read.max_bytes, read.isolation_level) == (
        -1,
        wait_ms,
        1,
        most_bytes,
        0,
    )
    assert (read.session_id, read.session_epoch) == (ask.session_id, ask.epoch)
    asked = {(topic, number): rest for topic, parts in read.topics for number, *rest in parts}
    assert asked == {partition: [at, -1, most_bytes_each] for partition, at in ask.offsets.items()}
    assert {(topic, number) for topic, parts in read.forgotten_topics_data for number in parts} == set(ask.forgotten)


answers = st.lists(
    st.tuples(
        topics,
        st.lists(
            st.tuples(
                st.integers(0, 1000),
                st.integers(-1, 100),
                st.integers(0, 2**62),
                st.integers(-1, 2**62),
                st.integers(-1, 2**62),
                st.none() | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3),
                st.none() | st.binary(max_size=40),
            ),
            max_size=4,
        ),
    ),
    max_size=4,
)


@given(answers, st.integers(-1, 100), sizes)
def test_we_read_aiokafkas_response(
    answer: list[tuple[str, list[tuple[int, int, int, int, int, object, bytes | None]]]], error: int, session: int
) -> None:
    body = FetchResponse_v7(throttle_time_ms=0, error_code=error, session_id=session, topics=answer).encode()
    expected = [
        PartitionData(topic, number, error, end, records or b"")
        for topic, parts in answer
        for number, error, end, *_, records in parts
    ]
    read = decode(body)
    assert (read.error, read.session_id, list(read.parts)) == (error, session, expected)


def test_the_header_is_aiokafkas() -> None:
    ours = FetchCall(b"").build_request_header(7, "bénch").encode()
    theirs = (
        FetchRequest_v7(-1, 0, 0, 0, 0, 0, 0, [], []).build_request_header(correlation_id=7, client_id="bénch").encode()
    )
    assert ours == theirs


def test_a_broker_that_does_not_speak_it_is_refused() -> None:
    call = FetchCall(b"")
    assert call.prepare({1: (4, 17)}) is call
    for versions in ({1: (8, 17)}, {1: (0, 6)}, {}):
        with pytest.raises(IncompatibleBrokerVersion):
            call.prepare(versions)
