"""Test the index of recent requests and the offsets of their events.

For a request, the index returns None or a range of offsets that contains every event of the request.
"""

from hypothesis import given
from hypothesis import strategies as st

from services.edge.log.request_index import EventSpan, RequestIndex, RequestPosition

KEYS = (b"a", b"b", b"c")


def test_a_new_request_is_known_from_its_first_event_to_its_last():
    index = RequestIndex()
    index.follow(b"a", 1, whole=True)
    assert index.span(b"a") == EventSpan(0, 0)
    for offset in (7, 9, 40):
        index.note_event(b"a", offset)
        index.note_event(b"other", offset + 1)
    assert index.span(b"a") == EventSpan(7, 41)
    assert b"other" not in index
    assert index.span(b"other") is None


def test_an_older_request_is_known_once_its_history_was_read():
    index = RequestIndex()
    index.follow(b"a", 1, whole=False)
    index.note_event(b"a", 50)
    assert index.span(b"a") is None
    index.add_history(b"a", [10, 20, 50])
    assert index.span(b"a") == EventSpan(10, 51)


def test_what_is_no_longer_followed_is_forgotten():
    index = RequestIndex()
    index.follow(b"a", 1, whole=True)
    index.follow(b"b", 2, whole=True)
    index.drop_partition(1)
    assert index.span(b"a") is None
    assert index.span(b"b") is not None


def test_offsets_given_a_second_time_end_an_entry():
    index = RequestIndex()
    index.follow(b"a", 1, whole=True)
    index.note_event(b"a", 10)
    index.note_event(b"a", 9)
    assert index.span(b"a") is None
    index.follow(b"b", 1, whole=True)
    for _ in range(2):
        index.note_event(b"b", 10)
    assert index.span(b"b") is None


def test_the_oldest_goes():
    index = RequestIndex(size=2)
    for key in KEYS:
        index.follow(key, 0, whole=True)
    assert [key in index for key in KEYS] == [False, True, True]


def test_where_the_request_is():
    index = RequestIndex()
    index.follow(b"a", 1, whole=True)
    index.note_request(b"a", "railbus.requests", -1)  # the broker does not know any more
    assert index.request(b"a") is None
    index.note_request(b"a", "railbus.requests", 3)
    assert index.request(b"a") == RequestPosition("railbus.requests", 3)


ACTIONS = st.one_of(
    st.tuples(st.just("event"), st.sampled_from(KEYS)),
    st.tuples(st.just("resume"), st.sampled_from(KEYS)),
    st.tuples(st.just("read"), st.sampled_from(KEYS)),
    st.tuples(st.just("unfollow"), st.just(b"")),
)


@given(st.lists(ACTIONS, max_size=60), st.integers(1, 3))
def test_a_span_holds_every_event_that_was_delivered(actions, size):
    """If the index knows the span of a request, the span covers all events of the request.

    This is true even if the index learns about new events before it learns about older events.
    """
    index, log, reading = RequestIndex(size), [], {}
    for what, key in actions:
        match what:
            case "event":
                log.append(key)
                index.note_event(key, len(log) - 1)
            case "resume":
                index.follow(key, 0, whole=False)
                reading[key] = len(log)
            case "read" if key in reading:
                index.add_history(key, [at for at, other in enumerate(log[: reading.pop(key)]) if other == key])
            case "unfollow":
                index.drop_partition(0)
                reading.clear()  # the streams that hold the partition have ended
        for each in KEYS:
            span = index.span(each)
            offsets = [at for at, other in enumerate(log) if other == each]
            assert span is None or not offsets or (span.begin <= offsets[0] and span.end == offsets[-1] + 1)


def test_a_client_beyond_what_the_index_knows_reads_the_log() -> None:
    index = RequestIndex()
    index.follow(b"a", 0, whole=True)
    index.note_event(b"a", 5)

    assert index.history_span(b"a", None) == index.history_span(b"a", 5) == (5, 6)
    assert index.history_span(b"a", 6) is None
    assert index.history_span(b"b", None) is None
