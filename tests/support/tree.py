"""Run a tree (``railbus up`` and all processes that it starts) in a given folder."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.processes import bare_environment
from tests.support.waiting import wait_until

START_TIMEOUT_S = 180
"""Longest wait for a start. A tree has at least six processes, and other tests may keep the machine busy."""

BACK_S = 90
"""Longest wait until a killed process is started again."""


class Tree:
    """A running ``railbus up``."""

    def __init__(self, folder: Path, process, lines):
        self.folder = folder
        self.process = process
        self.stderr = lines

    @property
    def state(self):
        return json.loads((self.folder / ".railbus" / "up.json").read_text())

    @property
    def url(self):
        return self.state["url"]

    @property
    def kafka(self):
        return self.state["kafka"]

    def pid(self, service):
        return self.state["pids"][service]

    def said(self, text):
        return any(text in line for line in self.stderr)

    def railbus(self, *args, timeout=60, **env):
        """Run a ``railbus`` command in the tree's folder, and return the result."""
        return subprocess.run(
            [sys.executable, "-m", "services.cli", *args],
            capture_output=True, text=True, timeout=timeout, cwd=self.folder, check=False,
            stdin=subprocess.DEVNULL, env=bare_environment() | env,
        )  # fmt: skip

    def kill(self, service):
        """Kill a service with SIGKILL. Wait until a new process has been started in its place, ready or not."""
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.pid(service) != before, f"{service} is started again", BACK_S)

    def processes(self):
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running_tree(folder: Path, *args, governed=False, ledger=False, start_s=START_TIMEOUT_S, **env):
    """Within the ``with`` block, run ``railbus up`` in ``folder``. Yield the tree when it is ready.

    Args:
        args: More command-line options of ``railbus up``.
        governed: Whether the services ``rails`` and ``safety`` run.
        ledger: Whether the service ``ledger`` runs.
        start_s: Longest time that the start may take.
        env: More environment variables.
    """
    args = (*args, "--governed" if governed else "--no-governed", "--ledger" if ledger else "--no-ledger")
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli", "up", "--port", "0", *args],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, stdin=subprocess.DEVNULL,
        env=bare_environment() | env,
    )  # fmt: skip
    lines = []
    pump = threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True)
    pump.start()
    watchdog = threading.Timer(start_s, process.kill)
    watchdog.start()
    try:
        first = process.stdout.readline()
        watchdog.cancel()
        assert first.startswith("ready http://127.0.0.1:"), (first, lines)
        yield Tree(folder, process, lines)
    finally:
        watchdog.cancel()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        pump.join(5)
        process.stdout.close()
        process.stderr.close()
