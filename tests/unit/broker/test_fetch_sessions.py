"""Test the limits on the number and size of fetch sessions. See also ``tests/contract/test_fetch_sessions.py``."""

import pytest

from services.broker import fetch_sessions
from services.broker.fetch_sessions import FetchedPartition, FetchSessions
from services.broker.log_waiters import LogWaiters


@pytest.fixture
def sessions():
    return FetchSessions(lambda _topic, _partition: None, LogWaiters())


def asked(first, end):
    return [FetchedPartition(b"topic", number, 0, 1_000, None) for number in range(first, end)]


def test_a_session_in_use_is_not_given_up_for_another(sessions, monkeypatch):
    monkeypatch.setattr(fetch_sessions, "MOST_SESSIONS", 2)
    held = [sessions.open(asked(0, 1)) for _ in range(2)]
    assert sessions.open(asked(0, 1)) is None
    monkeypatch.setattr(fetch_sessions, "IDLE_S", -1.0)
    assert sessions.open(asked(0, 1)) is not None
    assert sessions.find(held[0].session_id) is None
    assert sessions.find(held[1].session_id) is held[1]


def test_partitions_are_bounded_in_new_sessions_and_in_those_that_grow(sessions, monkeypatch):
    monkeypatch.setattr(fetch_sessions, "MOST_PARTITIONS", 10)
    session = sessions.open(asked(0, 6))
    assert sessions.open(asked(0, 5)) is None
    assert sessions.update(session, asked(0, 6), [])  # the same ones, from other offsets on
    assert sessions.update(session, asked(6, 10), [])
    assert not sessions.update(session, asked(10, 11), [])
    assert sessions.find(session.session_id) is None
    assert sessions.open(asked(0, 10)) is not None  # its room is free again
