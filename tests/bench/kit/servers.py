"""Start the test model server and the load client as processes, for benchmarks."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_RUN_S = 600


@dataclass(frozen=True)
class Upstream:
    """A running test model server."""

    url: str
    process: subprocess.Popen[str]

    def stop(self) -> None:
        """Stop the server, if it still runs. Kill it if it does not end within 10 seconds."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def upstream(port: int = 0, journal: Path | None = None) -> Iterator[Upstream]:
    """Run the test model server within the ``with`` block, and yield it.

    Port 0 means any free port. ``journal`` is a file to which the server appends a line for each event.
    """
    command = [sys.executable, "-m", "tests.bench.kit", "upstream", "--port", str(port)]
    command += [] if journal is None else ["--journal", str(journal)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        word, _, url = process.stdout.readline().strip().partition(" ")
        if word != "ready":
            sys.exit(f"the model server ended before it was ready, with code {process.wait()}")
        server = Upstream(url, process)
        yield server
        server.stop()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def load(url: str, *options: str) -> dict[str, Any]:
    """Run the load client in its own process with these options, and return its figures."""
    command = [sys.executable, "-m", "tests.bench.kit", "load", "--url", url, *options]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=MOST_RUN_S, check=False)
    if not run.stdout:
        sys.exit(f"the load client ended with code {run.returncode} and no figures")
    figures: dict[str, Any] = json.loads(run.stdout)
    return figures


def wait_for(url: str, process: subprocess.Popen[Any], seconds: float = 60) -> None:
    """Wait until the server that runs in ``process`` answers at the URL.

    End the calling program if the server has ended, or if it does not answer within ``seconds``.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"a server ended before it was ready, with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nobody answers at {url}")
