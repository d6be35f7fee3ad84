"""Tests of `python -m services.broker`, run as a process."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.broker.protocol.wire import Writer
from services.broker.service import BrokerService
from tests.support.chunk_log import Connection, create_topic, fill

pytestmark = pytest.mark.slow  # each is a process

ROOT = Path(__file__).parents[3]
LIMIT_S = 20


@contextmanager
def process(*arguments: str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [*before, sys.executable, "-m", "services.broker", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate(timeout=LIMIT_S)


def ended(*arguments: str) -> tuple[int, str, str]:
    with process(*arguments) as running:
        out, err = running.communicate(timeout=LIMIT_S)
        return running.returncode, out, err


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_stops_cleanly(stop):
    with process("--port", "0") as running:
        ready = running.stdout.readline()
        assert ready.startswith("ready 127.0.0.1:")
        socket.create_connection(("127.0.0.1", int(ready.rsplit(":", 1)[1])), LIMIT_S).close()
        running.send_signal(stop)
        out, err = running.communicate(timeout=LIMIT_S)
        assert (running.returncode, out) == (0, "")
        assert "no replication, no transactions, no authentication" in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--host", "0.0.0.0"], "loopback only"),
        (["--host", "example.org"], "loopback only"),
        (["--port", "99999"], "at most 65535"),
        (["--port", "0", "--partitions", "0"], "at least 1"),
        (["--port", "0", "--memory-bytes", "5"], "at least"),
        (["--port", "many"], "invalid int value"),
        (["--port", "0", "--data-dir", "/dev/null"], "cannot be used"),
    ],
)
def test_a_users_mistake_is_one_clear_line(arguments, says):
    code, out, err = ended(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_an_ipv6_address_may_have_brackets():
    broker = BrokerService(host="[::1]")
    broker.settings.check()
    assert (broker.settings.host, broker.address) == ("::1", "[::1]:0")


def test_a_port_in_use_is_named(tmp_path):
    with process("--port", "0") as running:
        port = running.stdout.readline().strip().rsplit(":", 1)[1]
        code, _, err = ended("--port", port, "--data-dir", str(tmp_path))
        assert code == 2
        assert f"cannot listen on 127.0.0.1:{port}" in err


def test_a_low_limit_of_open_files_is_raised_for_many_partitions(tmp_path):
    few_files = ("sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh")
    with process("--port", "0", "--data-dir", str(tmp_path), before=few_files) as running:
        address = running.stdout.readline().split()[1]
        connection = Connection(address)
        create_topic(connection, "t", 100, {})
        connection.close()
        fill(address, "t", 100, 100, in_batch=1)


def test_heartbeats_that_came_while_the_broker_was_paused_count():
    with process("--port", "0", "--min-session-ms", "1000") as running:
        connection = Connection(running.stdout.readline().split()[1])
        for number in range(2):
            group = f"group{number}"
            join = (
                Writer()
                .string(group)
                .i32(1000)
                .i32(5000)
                .string("")
                .string("consumer")
                .i32(1)
                .string("range")
                .blob(b"")
            )
            answer = connection.ask(11, 2, join.done())
            answer.i32(), answer.i16()
            generation = answer.i32()
            answer.string(), answer.string()
            member = Writer().string(group).i32(generation).string(answer.string())
            heartbeat = member.done()
            connection.ask(14, 1, member.i32(0).done())
            running.send_signal(signal.SIGSTOP)
            connection.send(12, 0, heartbeat)
            time.sleep(1.6)
            running.send_signal(signal.SIGCONT)
            assert connection.answer().i16() == 0
        connection.close()
