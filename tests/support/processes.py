"""Processes that tests start: services, commands, and the environment they run in."""

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
    """This process's environment without any setting of the product, and these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAILBUS_", "OTEL_"))}
    return kept | env


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; for ``preexec_fn``."""
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
    """Return a free port below those that Linux gives to outgoing connections, and that ``railbus up`` chooses among.

    A client that tries to reconnect while the broker is down could otherwise be given the broker's own port. It is free
    until its process listens, a second or two later: so each worker of pytest has ports of its own, and none of those
    that it was given lately is given again.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = [port for port in range(10_000 + worker, CANDIDATE_PORTS.start, workers) if port not in _given_ports]
    port = next(port for port in random.sample(mine, 100) if is_free(port))
    _given_ports.append(port)
    return port


def go_program(name: str) -> str | None:
    """Return a program that is in PATH or that Go has built; None if it is not here."""
    go = shutil.which("go")
    homes = [Path.home() / "go"]
    if go is not None:
        told = subprocess.run([go, "env", "GOPATH"], capture_output=True, text=True, timeout=30, check=False)
        homes.insert(0, Path(told.stdout.strip() or homes[0]))
    return shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", ""), *(str(home / "bin") for home in homes)])
    )


class ServiceProcess:
    """A module that runs as a process, such as ``ServiceProcess("services.router")``; the test must end it."""

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
        """The exit status; None while it runs."""
        return self._popen.poll()

    @property
    def stdout(self) -> str:
        return _content(self._out.fileno())

    @property
    def stderr(self) -> str:
        return _content(self._err.fileno())

    async def ready(self, within_s: float | None = None) -> str:
        """Wait for the ready line; return what follows the word."""
        done = await comes_true(lambda: "\n" in self.stdout or not self.running, within_s or START_TIMEOUT_S)
        line = self.stdout.partition("\n")[0]
        assert line.startswith("ready "), (
            f"{self.module} {'ended' if done else 'was not ready in time'}: {self.stderr[-2_000:]}"
        )
        return line.removeprefix("ready ").strip()

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    async def ended(self, within_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the end; return the exit status."""
        assert await comes_true(lambda: not self.running, within_s, every_s=0.01), f"{self.module} did not end"
        return self._popen.returncode

    async def stop(self, within_s: float = STOP_TIMEOUT_S) -> int:
        """Stop it as an operator does; return the exit status."""
        self.signal(signal.SIGTERM)
        return await self.ended(within_s)

    def kill(self) -> None:
        """kill -9, if it runs; what it wrote to standard error goes to the test's report."""
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        if self._err.closed:
            return
        sys.stderr.write(self.stderr)
        self._out.close()
        self._err.close()

    def cpu_s(self) -> float:
        """Return the CPU seconds that it has used so far."""
        times = psutil.Process(self._popen.pid).cpu_times()
        return float(times.user + times.system)


def _content(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
