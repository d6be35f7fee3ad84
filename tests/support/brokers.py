"""Broker processes for tests. Apache Kafka and the embedded broker are started, stopped and killed in the same way."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from tests.support.processes import ROOT, die_with_parent, free_port, is_free

COMMANDS = {
    "embedded": [sys.executable, "-m", "services.broker", "--no-auto-create-topics", "--min-session-ms", "1000"],
    "kafka": [sys.executable, str(ROOT / "infra" / "kafka" / "run.py")],
}
# The first start of Apache Kafka downloads it.
START_TIMEOUT_S = {"embedded": 90, "kafka": 600}
STOP_TIMEOUT_S = 40
PREREQUISITE_MISSING = 3


class BrokerUnavailable(Exception):
    """Raised if Apache Kafka cannot run because Java or Maven is missing or Java is too old.

    The message is what ``infra/kafka/run.py``, which starts Apache Kafka, wrote to standard error.
    """


class Broker:
    """One broker process with its own data directory. The embedded broker may keep its log in memory instead."""

    def __init__(
        self,
        kind: str,
        data_dir: Path,
        port: int | None = None,
        options: tuple[str, ...] = (),
        *,
        in_memory: bool = False,
    ) -> None:
        self.kind = kind
        self.port = port or free_port()
        self._data = () if in_memory else ("--data-dir", str(data_dir))
        self._options = options
        # Only Apache Kafka writes this one.
        self._log = data_dir / "broker.log"
        self._output = data_dir.with_suffix(".out")
        self._errors = data_dir.with_suffix(".err")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the broker, and wait until it serves clients."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process. Call this in a long-lived thread, because the process is killed when that thread ends."""
        command = [*COMMANDS[self.kind], "--port", str(self.port), *self._data, *self._options]
        with self._output.open("wb") as output, self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, preexec_fn=die_with_parent
            )

    def wait_until_ready(self) -> None:
        """Wait until the broker has printed its ready line."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S[self.kind]
        while f"ready {self.address}\n" not in self._output.read_text():
            status = self._process.poll()
            if status == PREREQUISITE_MISSING:
                raise BrokerUnavailable(self.said())
            assert status is None, f"{self.kind} broker ended with {status}: {self.said()}"
            assert time.monotonic() < deadline, f"{self.kind} broker was not ready in time: {self.said()}"
            time.sleep(0.02)

    def stop(self) -> int:
        """Stop the broker with SIGTERM, as an operator does, and return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the broker with SIGKILL, so that it can write nothing more, and wait until its port is free."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        # The JVM is a child of the process that was killed; the kernel kills it a moment later.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not is_free(self.port):
            assert time.monotonic() < deadline, f"{self.kind} broker still holds its port after kill -9"
            time.sleep(0.02)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Return what the broker has written to standard error."""
        return self._errors.read_text(errors="replace").strip()

    def log(self) -> str:
        """Return the last 4,000 characters of the broker's log."""
        logged = self._log.read_text(errors="replace") if self._log.exists() else self.said()
        return logged[-4000:]


class KafkaCluster:
    """Several nodes of Apache Kafka, started by one runner process. Each node can be killed or paused alone."""

    def __init__(self, data_dir: Path, nodes: int = 3) -> None:
        self.nodes = nodes
        self.addresses: list[str] = []
        self._data = data_dir
        self._output, self._errors = data_dir.with_suffix(".out"), data_dir.with_suffix(".err")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses)

    def launch(self) -> None:
        """Start the nodes. Call this in a long-lived thread, because the nodes are killed when that thread ends."""
        command = [*COMMANDS["kafka"], "--nodes", str(self.nodes), "--port", "0", "--data-dir", str(self._data)]
        with self._output.open("wb") as output, self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, preexec_fn=die_with_parent
            )

    def wait_until_ready(self) -> None:
        """Wait until every node serves clients and knows the other nodes."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S["kafka"]
        while not (line := self._output.read_text()).endswith("\n"):
            status = self._process.poll()
            if status == PREREQUISITE_MISSING:
                raise BrokerUnavailable(self.said())
            assert status is None, f"the cluster ended with {status}: {self.said()}"
            assert time.monotonic() < deadline, f"the cluster was not ready in time: {self.said()}"
            time.sleep(0.05)
        self.addresses = line.removeprefix("ready ").strip().split(",")

    def pid(self, node: int) -> int:
        """Return the process id of a node. The first node has number 1."""
        return int((self._data / f"node-{node}" / "pid").read_text())

    def signal(self, node: int, number: int) -> None:
        os.kill(self.pid(node), number)

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL, and wait until its port is free."""
        self.signal(node, signal.SIGKILL)
        port = int(self.addresses[node - 1].rpartition(":")[2])
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not is_free(port):
            assert time.monotonic() < deadline, f"node {node} still holds its port after kill -9"
            time.sleep(0.02)

    def start_again(self) -> None:
        """Tell the runner to start every ended node again. Do not wait until the nodes are up."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def serves(self, node: int) -> bool:
        """Return whether a node answers and knows all nodes of the cluster."""
        host, _, port = self.addresses[node - 1].rpartition(":")
        body = struct.pack(">hhihi", 3, 1, 1, -1, 0)  # Metadata, version 1, of no topic
        try:
            with socket.create_connection((host, int(port)), timeout=2) as peer:
                peer.sendall(struct.pack(">i", len(body)) + body)
                head = peer.recv(12, socket.MSG_WAITALL)  # length, correlation, number of brokers
        except OSError:
            return False
        return len(head) == 12 and struct.unpack(">i", head[8:])[0] >= self.nodes

    def stop(self) -> int:
        """Stop all nodes: send SIGTERM to the process that runs them, and return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Return what the process that runs the nodes has written to standard error."""
        return self._errors.read_text(errors="replace").strip()
