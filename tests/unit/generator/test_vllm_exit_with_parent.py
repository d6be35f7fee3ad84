"""Test that a process that called ``watch_parent`` exits when its parent ends, with and without ``pidfd_open``."""

import os
import subprocess
import sys

import pytest

from services.generator.engines.vllm.exit_with_parent import PARENT_PID_VARIABLE

pytestmark = pytest.mark.slow  # each is a process

WATCH = (
    "import sys, time; from services.generator.engines.vllm import exit_with_parent as it; {before}; "
    "it.watch_parent(); print(1); "
)
ASLEEP = WATCH + "sys.stdout.flush(); time.sleep(60)"
WITHOUT_THE_CALL = (
    "import os; it.POLL_INTERVAL_S = 0.01; "
    "os.pidfd_open = lambda pid: (_ for _ in ()).throw(OSError(38, 'Function not implemented'))"
)


def watching(parent, program):
    env = {name: value for name, value in os.environ.items() if name != PARENT_PID_VARIABLE} | (
        {PARENT_PID_VARIABLE: str(parent)} if parent else {}
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)


@pytest.fixture
def parent():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("before", ["pass", WITHOUT_THE_CALL], ids=["pidfd", "polling"])
def test_it_ends_with_its_parent(parent, before):
    with watching(parent.pid, ASLEEP.format(before=before)) as process:
        assert process.stdout.readline() == b"1\n"
        assert process.poll() is None
        parent.kill()
        parent.wait()
        assert process.wait(20) == 1


def test_it_ends_if_its_parent_has_ended_already(parent):
    parent.kill()
    parent.wait()
    with watching(parent.pid, ASLEEP.format(before="pass")) as process:
        assert process.wait(20) == 1


def test_without_a_parent_it_runs_on():
    with watching(None, WATCH.format(before="pass") + "time.sleep(0.2); sys.exit(7)") as process:
        assert process.wait(20) == 7
