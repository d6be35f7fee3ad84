"""A whole tree for tests: ``railbus up`` as a process of its own, in a folder of its own."""

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
"""Six processes and more, on a machine that may be busy with other tests."""

BACK_S = 90
"""Longest wait for a killed process's successor."""


class Tree:
    """A running tree, as an operator sees it."""

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
        """Runs another command beside the tree; it finds the tree by its folder."""
        return subprocess.run(
            [sys.executable, "-m", "services.cli", *args],
            capture_output=True, text=True, timeout=timeout, cwd=self.folder, check=False,
            stdin=subprocess.DEVNULL, env=bare_environment() | env,
        )  # fmt: skip

    def kill(self, service):
        """kill -9; returns when another process has taken its place and serves."""
        before = self.pid(service)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: self.pid(service) != before, f"{service} is started again", BACK_S)

    def processes(self):
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def running_tree(folder: Path, *args, governed=False, ledger=False, start_s=START_TIMEOUT_S, **env):
    """A tree from its ready line on; whatever happens, none of its processes is left behind."""
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
