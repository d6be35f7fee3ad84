"""One Apache Kafka process: its storage formatted, its settings written, started, waited for and stopped."""

import base64
import random
import socket
import string
import struct
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from jars import HERE, KafkaError, die_with_parent

HOST = "127.0.0.1"
HEAP_MB = 384
START_LIMIT_S = 90
STOP_LIMIT_S = 30
# Below the range from which Linux takes ports for outgoing connections: a client that keeps trying to
# reconnect while a broker restarts could otherwise be given the broker's own port, and keep it.
PORTS = range(20_000, 32_000)


class Node:
    """A context manager around the JVM: entered when the broker serves, left when it has ended.

    Raises:
        KafkaError: the storage could not be formatted, or the broker did not serve within 90 s.
    """

    def __init__(self, java: str, lib: Path, data_dir: Path, port: int, more_settings: str = "") -> None:
        self._java = java
        self._lib = lib
        self._data_dir = data_dir
        self.port = port
        self._more_settings = more_settings
        self._log = data_dir / "broker.log"
        self._jvm: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = self._write_settings()
        if not (self._data_dir / "log" / "meta.properties").exists():
            self._format(settings)
        # A file, not a pipe: a broker must never stand still because nobody reads what it says.
        with self._log.open("wb") as log:
            self._jvm = subprocess.Popen(
                self._command("kafka.Kafka", str(settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to run.py alone, which stops it once
                preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread runs here
            )
        try:
            self._wait_until_it_serves(self._jvm)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def wait(self) -> None:
        """Blocks until the broker has ended."""
        assert self._jvm is not None
        self._jvm.wait()

    def last_words(self) -> str:
        """Return the broker's own reason for ending, in one line."""
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

    def _write_settings(self) -> Path:
        # Of a setting that is there twice, Java takes the last.
        template = string.Template((HERE / "server.properties").read_text() + self._more_settings)
        filled = template.substitute(port=self.port, controller_port=free_port(), log_dir=self._data_dir / "log")
        path = self._data_dir / "server.properties"
        path.write_text(filled)
        return path

    def _format(self, settings: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(settings)]
        done = subprocess.run(self._command(*tool), capture_output=True, text=True, timeout=START_LIMIT_S, check=False)
        if done.returncode:
            raise KafkaError(f"storage could not be formatted: {_reason(done.stdout + done.stderr)}")

    def _wait_until_it_serves(self, jvm: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while not serves(self.port):
            if jvm.poll() is not None:
                raise KafkaError(f"the broker did not start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise KafkaError(f"the broker did not serve within {START_LIMIT_S} s: {self.last_words()}")
            time.sleep(0.05)

    def _end(self) -> None:
        if self._jvm is None or self._jvm.poll() is not None:
            return
        self._jvm.terminate()
        try:
            self._jvm.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()


def _reason(output: str) -> str:
    """Return the line of a Java program's output that says what failed: the first exception, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if "Exception: " in line or "Error: " in line]
    return (causes or lines[-1:] or ["it said nothing"])[0]


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that is free now, drawn at random, so that two runs at once hardly meet."""
    for port in random.sample(PORTS, 100):
        if is_free(port):
            return port
    raise KafkaError(f"no free port found between {PORTS.start} and {PORTS.stop}")


def serves(port: int) -> bool:
    """Whether the broker answers a metadata request and knows of itself.

    The port opens before the controller lets the broker take part, so that a connection alone says too little.
    """
    key, version, correlation = 3, 1, 1
    body = struct.pack(">hhihi", key, version, correlation, -1, 0)  # no client id, no topics
    try:
        with socket.create_connection((HOST, port), timeout=5) as peer:
            peer.sendall(struct.pack(">i", len(body)) + body)
            head = peer.recv(12, socket.MSG_WAITALL)  # length, correlation, number of brokers
    except OSError:
        return False
    return len(head) == 12 and struct.unpack(">i", head[8:])[0] > 0
