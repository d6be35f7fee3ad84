"""Starts one Apache Kafka broker (KRaft) on loopback, with neither Docker nor a Kafka installation.

    python infra/kafka/run.py --port 0 --data-dir DIR

Prints `ready 127.0.0.1:PORT` when it serves, and stops cleanly on SIGTERM or SIGINT. The data directory survives
a restart. Exit status: 0 stopped when told to, 1 could not run, 2 wrong arguments, 3 Java or Maven is missing.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from jars import KafkaError, fetch, find_java
from node import HOST, Node, free_port, is_free


def main() -> int:
    """Run the command line; return the exit status."""
    options = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        java, lib = find_java(), fetch()
        if options.fetch_only:
            return 0
        with _data_dir(options.data_dir) as data_dir:
            _serve(Node(java, lib, data_dir, _port(options.port), _read(options.settings)))
    except KafkaError as error:
        print(f"kafka: {error}", file=sys.stderr)
        return error.status


def _serve(node: Node) -> NoReturn:
    """Run the broker until a signal ends this process."""
    with node:
        print(f"ready {HOST}:{node.port}", flush=True)
        node.wait()
    raise KafkaError(f"the broker ended by itself: {node.last_words()}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run one Apache Kafka broker on loopback, for tests.")
    parser.add_argument("--port", type=int, default=9092, help="0 takes a free one (default: 9092)")
    parser.add_argument("--data-dir", type=Path, help="kept after the end (default: a temporary one, removed)")
    parser.add_argument(
        "--settings", type=Path, help="a file of more settings, which outrank those of server.properties"
    )
    parser.add_argument("--fetch-only", action="store_true", help="fetch the jars and end")
    options = parser.parse_args()
    if not 0 <= options.port < 65536:
        parser.error(f"--port {options.port}: a port is a number from 0 to 65535")
    return options


def _stop(_signal: int, _frame: FrameType | None) -> None:
    # One request to stop is enough: another must not interrupt the stopping.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(0)


def _read(settings: Path | None) -> str:
    try:
        return "" if settings is None else settings.read_text()
    except OSError as error:
        raise KafkaError(f"--settings {settings}: {error.strerror}") from None


@contextlib.contextmanager
def _data_dir(wanted: Path | None) -> Iterator[Path]:
    if wanted is None:
        with tempfile.TemporaryDirectory(prefix="railbus-kafka-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KafkaError(f"--data-dir {wanted}: {error.strerror}") from None
    yield wanted.resolve()


def _port(wanted: int) -> int:
    if wanted == 0:
        return free_port()
    if not is_free(wanted):
        raise KafkaError(f"port {wanted} is in use: choose another with --port, or --port 0 for a free one")
    return wanted


if __name__ == "__main__":
    sys.exit(main())
