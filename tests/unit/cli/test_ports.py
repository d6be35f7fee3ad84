"""Ports are such as no outgoing connection takes before their service does."""

import socket

import pytest

from services.cli import ports
from services.runtime import UserError


def test_a_free_port_is_free_and_below_those_of_outgoing_connections():
    found = {ports.free_port() for _ in range(20)}
    assert all(port in ports.UNCLAIMED and ports.is_free(port) for port in found)
    assert len(found) > 10


def test_where_all_of_those_are_taken_any_will_do(monkeypatch):
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    assert ports.free_port() > 0


def test_a_port_in_use_is_refused_with_the_remedy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="--port"):
            ports.chosen_port(taken.getsockname()[1], "--port")
