"""Test which connections the edge admits, and which it closes to make room or because they waited too long."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.edge.http.connection_table import MAX_REFUSED, PROXIED, ConnectionTable, address_group
from services.edge.open_files import (
    MAX_BACKLOG,
    MIN_BACKLOG,
    MIN_CONNECTIONS,
    RESERVED_FILES,
    backlog_that_fits,
    connections_that_fit,
    raised_limit,
)
from services.runtime.errors import UserError


def opened(table, key, address="10.0.0.1", deadline_s=10.0):
    admission = table.open(key, address, deadline_s)
    return admission.over, admission.evicted, admission.refusal


def test_the_longest_waiting_connection_makes_room():
    table = ConnectionTable(2, 2)
    assert opened(table, "a") == opened(table, "b") == (None, None, None)
    table.busy("a")
    table.wait("a", "next", 20.0)
    assert opened(table, "c", "10.0.0.2") == ("total", ("b", "request"), None)
    assert opened(table, "d", "10.0.0.2") == ("total", ("a", "next"), None)
    assert len(table) == 2


def test_an_address_over_its_limit_loses_its_own_connection():
    table = ConnectionTable(10, 1)
    opened(table, "other", "10.0.0.2")
    opened(table, "a")
    assert opened(table, "b") == ("address", ("a", "request"), None)
    table.busy("b")
    assert opened(table, "c") == ("address", None, "address")
    assert table.refusal("c") == "address"
    table.close("b")
    assert opened(table, "d") == (None, None, None)


def test_busy_connections_stay_and_further_ones_are_few():
    table = ConnectionTable(1, 1)
    opened(table, "busy")
    table.busy("busy")
    for number in range(MAX_REFUSED):
        assert opened(table, number, f"10.0.1.{number}") == ("total", None, "total")
    assert opened(table, "last", "10.0.2.1") == ("total", (0, "request"), "total")
    assert len(table) == 1 + MAX_REFUSED


def test_what_waits_too_long_expires_and_what_is_busy_does_not():
    table = ConnectionTable(10, 10)
    for key in ("silent", "hello", "busy"):
        opened(table, key, deadline_s=5.0)
    table.busy("busy")
    table.wait("hello", "hello", 3.0)
    assert table.expire(2.9) == []
    assert table.expire(3.0) == [("hello", "hello")]
    assert table.expire(100.0) == [("silent", "request")]
    assert len(table) == 1
    table.wait("silent", "next", 1.0)  # gone: no effect
    assert table.expire(200.0) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", "10.0.0.1", False),
    ],
)
def test_an_ipv6_network_counts_as_one_address(one, other, same):
    assert (address_group(one) == address_group(other)) is same


def test_a_proxys_connection_counts_as_its_clients_during_a_request():
    table = ConnectionTable(10, 1)
    for key in ("a", "b", "c"):
        assert opened(table, key, PROXIED) == (None, None, None)
        table.busy(key)
    assert table.move("a", "10.0.0.1").refusal is None
    assert table.move("b", "10.0.0.1").refusal == "address"
    assert table.move("c", "10.0.0.2").refusal is None
    table.move("a", PROXIED)
    assert table.move("b", "10.0.0.1").refusal is None
    table.wait("b", "hello", 5.0)
    assert table.move("a", "10.0.0.1").evicted == ("b", "hello")
    assert len(table) == 2


def test_connections_are_counted_by_kind():
    table = ConnectionTable(4, 4)
    for key in ("idle", "asks", "sends", "socket"):
        opened(table, key)
    table.busy("asks")
    table.wait("sends", "body", 5.0)
    table.busy("socket")
    table.upgrade("socket")
    table.wait("socket", "hello", 5.0)
    assert table.kinds() == {"idle": 1, "http": 2, "websocket": 1}
    for key in ("idle", "sends", "socket"):
        table.busy(key)
    opened(table, "over")
    assert table.kinds()["refused"] == 1


ACTIONS = st.tuples(
    st.sampled_from(["open", "busy", "wait", "close", "expire", "move"]), st.integers(0, 30), st.integers(0, 3)
)


@settings(deadline=None)
@given(st.lists(ACTIONS, max_size=200), st.integers(1, 5), st.integers(1, 5))
def test_no_history_passes_the_limits(actions, most, most_per_address):
    table, addresses, busy = ConnectionTable(most, most_per_address), {}, set()
    for at, (action, number, address) in enumerate(actions):
        key = (at, number) if action == "open" else next((k for k in addresses if k[1] == number), None)
        if action == "open":
            admission = table.open(key, str(address), at + 20.0)
            if admission.evicted is not None:
                assert admission.evicted[0] not in busy or table.refusal(key) is not None
                addresses.pop(admission.evicted[0])
                busy.discard(admission.evicted[0])
            addresses[key] = str(address)
        elif action == "expire":
            for gone, _ in table.expire(at):
                assert gone not in busy
                addresses.pop(gone)
        elif action == "move" and key is not None:
            admission = table.move(key, str(address))
            if admission.evicted is not None:
                assert admission.evicted[0] not in busy
                addresses.pop(admission.evicted[0])
            if admission.refusal is None and table.refusal(key) is None:
                addresses[key] = str(address)
        elif key is not None:
            getattr(table, action)(*((key, "next", at + 20.0) if action == "wait" else (key,)))
            busy.discard(key)
            if action == "busy":
                busy.add(key)
            if action == "close":
                del addresses[key]
        admitted = [address for key, address in addresses.items() if table.refusal(key) is None]
        assert len(admitted) <= most
        assert all(admitted.count(address) <= most_per_address for address in admitted)
        assert len(table) == len(addresses) <= most + MAX_REFUSED


INFINITE = -1
ENOUGH = 4_096 + RESERVED_FILES + MAX_BACKLOG - MIN_BACKLOG


@pytest.mark.parametrize(
    ("soft", "hard", "limit", "fit", "backlog"),
    [
        (1_024, 1_048_576, ENOUGH, 4_096, MAX_BACKLOG),
        (1_024, INFINITE, ENOUGH, 4_096, MAX_BACKLOG),
        (8_192, 8_192, 8_192, 4_096, MAX_BACKLOG),
        (4_500, 4_500, 4_500, 4_096, 4_500 - 4_096 - RESERVED_FILES + MIN_BACKLOG),
        (1_024, 1_024, 1_024, 1_024 - RESERVED_FILES, MIN_BACKLOG),
        (INFINITE, INFINITE, INFINITE, 4_096, MAX_BACKLOG),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_goes(soft, hard, limit, fit, backlog):
    assert raised_limit(soft, hard, 4_096) == limit
    assert connections_that_fit(limit, 4_096) == fit
    assert backlog_that_fits(limit, fit) == backlog


def test_too_few_open_files_are_an_error_of_the_operator():
    with pytest.raises(UserError, match="ulimit -n"):
        connections_that_fit(RESERVED_FILES + MIN_CONNECTIONS - 1, 4_096)
