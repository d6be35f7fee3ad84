"""Start services and other programs as processes of a test, each with a clean environment and free ports."""

import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Final

import psutil

from services.cli.tree.ports import CANDIDATE_PORTS
from tests.support.waiting import comes_true

ROOT: Final = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S: Final = 60.0

_given_ports: Final[deque[int]] = deque(maxlen=100)


def bare_environment(**env: str) -> dict[str, str]:
    """Return this process's environment variables and those in ``env``.

    Variables of this process that begin with ``RAILBUS_`` or ``OTEL_`` are left out.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAILBUS_", "OTEL_"))}
    return kept | env


def die_with_parent() -> None:
    """On Linux, let the kernel kill this process when the thread that started it ends.

    Pass this function as ``preexec_fn``.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a free port below the ports that ``railbus up`` chooses and below Linux's ports for outgoing connections.

    If the broker's port were in Linux's range, a client that reconnects while the broker is down could get that port
    for its own end of the connection.

    A process may need a second or two until it listens on its port. Until then, the port looks free to other callers.
    So each pytest worker chooses from ports of its own, and does not return its last 100 ports again.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = [port for port in range(10_000 + worker, CANDIDATE_PORTS.start, workers) if port not in _given_ports]
    port = next(port for port in random.sample(mine, 100) if is_free(port))
    _given_ports.append(port)
    return port


def go_program(name: str) -> str | None:
    """Return the path of a program in PATH or in Go's ``bin`` folders. Return None if it is in none of them."""
    go = shutil.which("go")
    homes = [Path.home() / "go"]
    if go is not None:
        told = subprocess.run([go, "env", "GOPATH"], capture_output=True, text=True, timeout=30, check=False)
        homes.insert(0, Path(told.stdout.strip() or homes[0]))
    return shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", ""), *(str(home / "bin") for home in homes)])
    )


class ServiceProcess:
    """A process that runs a Python module, such as ``ServiceProcess("services.router")``. The test must end it."""

    def __init__(self, module: str, *arguments: str, **env: str) -> None:
        self.module = module
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, env=bare_environment(**env),
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, preexec_fn=die_with_parent,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._popen.poll()

    @property
    def stdout(self) -> str:
        return _content(self._out.fileno())

    @property
    def stderr(self) -> str:
        return _content(self._err.fileno())

    async def ready(self, within_s: float | None = None) -> str:
        """Wait until the process prints its line ``ready ...``. Return the text after ``ready``."""
        done = await comes_true(lambda: "\n" in self.stdout or not self.running, within_s or START_TIMEOUT_S)
        line = self.stdout.partition("\n")[0]
        assert line.startswith("ready "), (
            f"{self.module} {'ended' if done else 'was not ready in time'}: {self.stderr[-2_000:]}"
        )
        return line.removeprefix("ready ").strip()

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    async def ended(self, within_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until the process ends. Return its exit status."""
        assert await comes_true(lambda: not self.running, within_s, every_s=0.01), f"{self.module} did not end"
        return self._popen.returncode

    async def stop(self, within_s: float = STOP_TIMEOUT_S) -> int:
        """Send SIGTERM, as an operator does, and wait until the process ends. Return its exit status."""
        self.signal(signal.SIGTERM)
        return await self.ended(within_s)

    def kill(self) -> None:
        """Send SIGKILL if the process still runs. Copy the process's standard error to the test's report."""
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        if self._err.closed:
            return
        sys.stderr.write(self.stderr)
        self._out.close()
        self._err.close()

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used so far, in seconds."""
        times = psutil.Process(self._popen.pid).cpu_times()
        return float(times.user + times.system)


def _content(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
