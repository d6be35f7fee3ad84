"""Tests of a client's fetch session. In a session, a request names only the partitions whose offset has changed."""

from services.bus.read.fetch_session import ClientFetchSession
from services.bus.read.fetch_wire import PartitionData

A, B, C = ("topic", 0), ("topic", 1), ("topic", 2)


def answer(session: ClientFetchSession, number: int, end: int, read_to: int) -> None:
    session.answered(9)
    session.read(PartitionData("topic", number, 0, end, b""), read_to)


def test_a_session_opens_whole_and_goes_on_with_what_was_read() -> None:
    session = ClientFetchSession()
    assert not session.goes_on
    assert set(session.ask({A: 0, B: 0}).offsets) == {A, B}
    answer(session, 0, end=5, read_to=5)
    assert session.goes_on
    assert session.answered_for == [A]
    ask = session.ask({A: 5}, whole=False)
    assert (dict(ask.offsets), list(ask.forgotten), session.answered_for) == ({A: 5}, [], [])
    answer(session, 1, end=3, read_to=2)
    assert session.behind == {B}
    assert dict(session.ask({B: 2}, whole=False).offsets) == {B: 2}


def test_only_whole_requests_forget_what_they_do_not_name() -> None:
    session = ClientFetchSession()
    session.ask({A: 0, B: 0, C: 0})
    answer(session, 0, end=1, read_to=1)
    assert session.ask({A: 1}, whole=False).forgotten == []
    answer(session, 0, end=2, read_to=2)
    assert session.ask({A: 2, C: 0}).forgotten == [B]


def test_after_a_lost_answer_everything_is_named_again() -> None:
    session = ClientFetchSession()
    session.ask({A: 0, B: 0})
    answer(session, 0, end=1, read_to=1)
    session.reset()
    assert not session.goes_on
    assert set(session.ask({A: 1, B: 0}).offsets) == {A, B}
