"""Test that ``railbus tune``, when it is told to end, ends all processes that it has started."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.processes import bare_environment
from tests.support.waiting import wait_until

PATIENCE_S = 90

pytestmark = pytest.mark.slow


def running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended between the two
        return False


@pytest.mark.parametrize("by", ["a supervisor", "the terminal"])
def test_one_that_is_told_to_end_ends_its_tuner_and_its_engines(tmp_path, by):
    command = [
        sys.executable, "-m", "services.cli", "tune", "--out", str(tmp_path / "out"), "--engine", "simulated",
        "--requests", "10000", "--set", "RAILBUS_SIM_TIME_SCALE=50",
    ]  # fmt: skip
    tune = subprocess.Popen(
        command, env=bare_environment(), start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    started = []

    def measuring():
        started[:] = psutil.Process(tune.pid).children(recursive=True)
        return len(started) >= 2  # the tuner, and an engine

    try:
        wait_until(measuring, "an engine runs", PATIENCE_S)
        if by == "a supervisor":
            tune.terminate()
        else:
            os.killpg(tune.pid, signal.SIGINT)
        wait_until(lambda: not any(map(running, started)), "the tuner and its engines have ended", PATIENCE_S)
        assert tune.wait(PATIENCE_S) == 130
    finally:
        for process in started:
            if running(process):
                process.kill()
        tune.kill()
        tune.wait()
