"""Run Apache Kafka nodes as child processes."""

import base64
import fcntl
import os
import random
import socket
import string
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from jars import HERE, KafkaError, die_with_parent

HOST = "127.0.0.1"
HEAP_MB = 384
START_LIMIT_S = 90
STOP_LIMIT_S = 30
CLUSTER_STOP_LIMIT_S = 5
MOST_COPIES = 3
# Below the range from which Linux takes ports for outgoing connections: a client that keeps trying to
# reconnect while a broker restarts could otherwise be given the broker's own port, and keep it.
PORTS = range(20_000, 32_000)
# The locks of the ports chosen here; they stay open until this process ends.
_reserved: list[int] = []


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


@dataclass(frozen=True)
class Place:
    """The number of a node in its cluster, and the settings that all nodes of the cluster share.

    Attributes:
        node_id: Number of the node, from 1.
        controllers: The controller port of each node. The first port belongs to node 1.
    """

    node_id: int = 1
    controllers: Sequence[int] = field(default_factory=lambda: (free_port(),))
    cluster_id: str = field(default_factory=new_cluster_id)

    def settings(self) -> dict[str, object]:
        copies = min(len(self.controllers), MOST_COPIES)
        return {
            "node_id": self.node_id,
            "voters": ",".join(f"{number}@{HOST}:{port}" for number, port in enumerate(self.controllers, 1)),
            "controller_port": self.controllers[self.node_id - 1],
            "copies": copies,
            "min_insync": 2 if copies == MOST_COPIES else 1,
        }


class Node:
    """Context manager that starts one Kafka broker, waits until it serves, and stops it after the block.

    Raises:
        KafkaError: If the storage cannot be formatted, or the broker does not serve within 90 s.
    """

    def __init__(
        self, java: str, lib: Path, data_dir: Path, port: int, more_settings: str = "", place: Place | None = None
    ) -> None:
        self._java = java
        self._lib = lib
        self._data_dir = data_dir
        self.port = port
        self._more_settings = more_settings
        self._place = place or Place()
        self._settings = data_dir / "server.properties"
        self._log = data_dir / "broker.log"
        self._jvm: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        formatting = self.format()
        if formatting is not None:
            self.check_format(formatting)
        self.launch()
        try:
            self.wait_until_it_serves()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def pid(self) -> int:
        assert self._jvm is not None
        return self._jvm.pid

    @property
    def running(self) -> bool:
        return self._jvm is not None and self._jvm.poll() is None

    def format(self) -> "subprocess.Popen[str] | None":
        """Write the settings, and start a process that formats the storage.

        Return the process. If the storage is formatted already, start no process and return None.
        """
        self._write_settings()
        if (self._data_dir / "log" / "meta.properties").exists():
            return None
        tool = [
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={self._place.cluster_id}",
            "-c",
            str(self._settings),
        ]
        return subprocess.Popen(
            self._command(*tool),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread runs here
        )

    def check_format(self, formatting: "subprocess.Popen[str]") -> None:
        try:
            said, _ = formatting.communicate(timeout=START_LIMIT_S)
        except subprocess.TimeoutExpired:
            formatting.kill()
            raise KafkaError(f"storage was not formatted within {START_LIMIT_S} s") from None
        if formatting.returncode:
            raise KafkaError(f"storage could not be formatted: {_reason(said)}")

    def launch(self) -> None:
        """Start the broker without waiting for it. Write its process id to the file `pid` in the data directory."""
        # A file, not a pipe: a broker must never stand still because nobody reads what it says.
        with self._log.open("wb") as log:
            self._jvm = subprocess.Popen(
                self._command("kafka.Kafka", str(self._settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to run.py alone, which stops it once
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread runs here
            )
        fresh = self._data_dir / "pid.new"
        fresh.write_text(f"{self._jvm.pid}\n")
        fresh.replace(self._data_dir / "pid")  # whoever reads it finds a whole number

    def wait(self) -> None:
        assert self._jvm is not None
        self._jvm.wait()

    def last_words(self) -> str:
        return f"{_reason(self._log.read_text(errors='replace'))} ({self._log})"

    def _command(self, *arguments: str) -> list[str]:
        return [
            self._java,
            "-Xms128m",
            f"-Xmx{HEAP_MB}m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # a start in seconds matters here, peak throughput does not
            f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
            "-cp",
            f"{self._lib}/*",
            *arguments,
        ]

    def _write_settings(self) -> None:
        # Of a setting that is there twice, Java takes the last.
        template = string.Template((HERE / "server.properties").read_text() + self._more_settings)
        filled = template.substitute(port=self.port, log_dir=self._data_dir / "log", **self._place.settings())
        self._settings.write_text(filled)

    def wait_until_it_serves(self, brokers: int = 1) -> None:
        """Wait until the broker answers and knows at least `brokers` brokers, including itself.

        Raises:
            KafkaError: The broker ended, or did not serve within 90 s.
        """
        assert self._jvm is not None
        deadline = time.monotonic() + START_LIMIT_S
        while not serves(self.port, brokers):
            if self._jvm.poll() is not None:
                raise KafkaError(f"the broker did not start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise KafkaError(f"the broker did not serve within {START_LIMIT_S} s: {self.last_words()}")
            time.sleep(0.05)

    def terminate(self) -> None:
        if self.running:
            assert self._jvm is not None
            self._jvm.terminate()

    def end(self, within_s: float = STOP_LIMIT_S) -> None:
        """Stop the broker. Kill it if it has not ended after `within_s` seconds."""
        if self._jvm is None or self._jvm.poll() is not None:
            return
        self._jvm.terminate()
        try:
            self._jvm.wait(within_s)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()


class Cluster:
    """Context manager that starts several Kafka nodes, waits until all serve, and stops them after the block.

    Raises:
        KafkaError: If a node cannot be formatted, or does not serve within 90 s.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._down: set[int] = set()

    def __enter__(self) -> Self:
        for node, formatting in [(node, node.format()) for node in self._nodes]:
            if formatting is not None:
                node.check_format(formatting)
        try:
            for node in self._nodes:
                node.launch()
            for node in self._nodes:
                node.wait_until_it_serves(len(self._nodes))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def look(self, *, restart: bool) -> None:
        """Report each node that has ended since the last call. With `restart`, start all ended nodes again."""
        for number, node in enumerate(self._nodes, 1):
            if node.running:
                continue
            if number not in self._down:
                self._down.add(number)
                _say(f"node {number} ended: {node.last_words()}")
            if restart:
                self._down.discard(number)
                node.launch()
                _say(f"node {number} is started again, as process {node.pid}")

    def _end(self) -> None:
        for node in self._nodes:
            node.terminate()
        # To shut down, a node needs a majority of the controllers. The last nodes have none, and wait for one in vain.
        deadline = time.monotonic() + CLUSTER_STOP_LIMIT_S
        for node in self._nodes:
            node.end(max(0.1, deadline - time.monotonic()))


def _say(text: str) -> None:
    print(f"kafka: {text}", file=sys.stderr, flush=True)


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if "Exception: " in line or "Error: " in line]
    return (causes or lines[-1:] or ["it said nothing"])[0]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a random loopback port that is free now, and lock it until this process ends."""
    for port in random.sample(PORTS, 100):
        if is_free(port) and _reserve(port):
            return port
    raise KafkaError(f"no free port found between {PORTS.start} and {PORTS.stop}")


def _reserve(port: int) -> bool:
    """Lock a port until this process ends. Return False if another process has locked the port.

    The lock is needed because Java takes a few seconds to start before it listens on the chosen port. The lock files
    are the same as those of ``railbus up``, which chooses ports from the same range.
    """
    # The same as `reserve` in services/cli/tree/ports.py, which this program cannot import: it runs without Railbus.
    folder = Path(tempfile.gettempdir()) / f"railbus-{os.getuid()}-ports"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder / str(port), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return True  # no lock file can be made, so the port is used without a lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    _reserved.append(lock)
    return True


def serves(port: int, brokers: int = 1) -> bool:
    """Return whether the broker on this port answers and knows at least `brokers` brokers, including itself."""
    # The port opens before the broker is ready, so a connection alone is not enough: send a metadata request.
    key, version, correlation = 3, 1, 1
    body = struct.pack(">hhihi", key, version, correlation, -1, 0)  # no client id, no topics
    try:
        with socket.create_connection((HOST, port), timeout=5) as peer:
            peer.sendall(struct.pack(">i", len(body)) + body)
            head = peer.recv(12, socket.MSG_WAITALL)  # length, correlation, number of brokers
    except OSError:
        return False
    return len(head) == 12 and struct.unpack(">i", head[8:])[0] >= brokers
