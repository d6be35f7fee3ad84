"""Test that other trees and outgoing connections cannot take a port that ``railbus up`` has chosen for a service."""

import os
import socket
import subprocess
import sys

import pytest

from services.cli.tree import ports
from services.runtime import UserError
from tests.support.processes import ROOT


def test_a_free_port_is_free_and_below_those_of_outgoing_connections():
    found = {ports.free_port() for _ in range(20)}
    assert all(port in ports.CANDIDATE_PORTS and ports.is_free(port) for port in found)
    assert len(found) > 10


def test_where_all_of_those_are_taken_any_will_do(monkeypatch):
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    assert ports.free_port() > 0


def test_a_port_in_use_is_refused_with_the_remedy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="--port"):
            ports.port_or_free(taken.getsockname()[1], "--port")


@pytest.mark.parametrize("port", [-1, 65_536, 99_999])
def test_a_port_that_does_not_exist_is_refused_with_the_flag(port):
    with pytest.raises(UserError, match=rf"^--port {port}: must be between 1 and 65535, or 0 for any free port$"):
        ports.port_or_free(port, "--port")


def test_no_port_is_chosen_twice_before_its_service_listens_there(monkeypatch):
    first, second = ports.free_port(), ports.free_port()
    draws = iter([first, first, second])
    for port in (first, second):
        os.close(ports._reserved.pop(port))
    monkeypatch.setattr(ports.secrets, "randbelow", lambda _: next(draws) - ports.CANDIDATE_PORTS.start)
    assert [ports.free_port(), ports.free_port()] == [first, second]
    assert not ports.reserve(first)


def test_the_port_of_a_flag_may_be_asked_for_twice():
    port = ports.free_port()
    assert ports.port_or_free(port, "--port") == ports.port_or_free(port, "--port") == port


def test_a_usual_port_that_is_taken_is_replaced_by_a_free_one():
    port = ports.free_port()
    os.close(ports._reserved.pop(port))
    assert ports.usual_port(port) == port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert ports.is_free(ports.usual_port(port))


def test_two_trees_that_start_at_once_choose_different_ports():
    port = ports.free_port()
    program = (
        f"import sys; from services.cli.tree import ports; print(ports.usual_port({port} + 1), flush=True);"
        " sys.stdin.read()"
    )
    trees = [
        subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        for _ in range(3)
    ]
    try:
        chosen = [int(tree.stdout.readline()) for tree in trees]  # none listens there yet
    finally:
        for tree in trees:
            tree.communicate()
    assert len(set(chosen)) == 3


def test_a_port_that_a_starting_kafka_has_chosen_is_not_chosen_again():
    program = "import sys; from node import free_port; print(free_port(), flush=True); sys.stdin.read()"
    kafka = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT / "infra" / "kafka"
    )
    try:
        port = int(kafka.stdout.readline())  # Java would listen there seconds later
        assert ports.is_free(port)
        assert not ports.reserve(port)
        assert ports.usual_port(port) != port
    finally:
        kafka.communicate()
    assert ports.reserve(port)


def test_a_starting_kafka_does_not_choose_a_port_that_a_tree_has_chosen():
    port = ports.free_port()
    program = f"import node; node.random.sample = lambda *_: range({port}, {port} + 100); print(node.free_port())"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=ROOT / "infra" / "kafka", check=True
    )
    assert int(found.stdout) > port
