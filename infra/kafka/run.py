"""Run Apache Kafka (KRaft) on loopback, one node or several. It needs Java and Maven, but no Docker.

    python infra/kafka/run.py --port 0 --data-dir DIR
    python infra/kafka/run.py --nodes 3 --port 0 --data-dir DIR

It prints `ready 127.0.0.1:PORT` (several addresses are separated by commas) and stops on SIGTERM or SIGINT. A later
start with the same data directory finds the records of the earlier one.

Exit status: 0 stopped by a signal, 1 failed, 2 wrong arguments, 3 Java or Maven is missing.

With one node, the program ends when the node ends. With several nodes, the program goes on. On SIGHUP, it starts the
ended nodes again. With `--restart`, it starts an ended node again at once, without SIGHUP.

The broker's process id is in `DIR/pid`. With several nodes, the process id of node N is in `DIR/node-N/pid`.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from jars import KafkaError, fetch, find_java
from node import HOST, Cluster, Node, Place, free_port, is_free, new_cluster_id

MOST_NODES = 5
LOOK_EVERY_S = 0.1


def main() -> int:
    options = _arguments()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        java, lib = find_java(), fetch()
        if options.fetch_only:
            return 0
        with _data_dir(options.data_dir) as data_dir:
            if options.nodes > 1:
                _serve_cluster(java, lib, data_dir, options)
            _serve(Node(java, lib, data_dir, _port(options.port), _read(options.settings)))
    except KafkaError as error:
        print(f"kafka: {error}", file=sys.stderr)
        return error.status


def _serve(node: Node) -> NoReturn:
    with node:
        print(f"ready {HOST}:{node.port}", flush=True)
        node.wait()
    raise KafkaError(f"the broker ended by itself: {node.last_words()}")


def _serve_cluster(java: str, lib: Path, data_dir: Path, options: argparse.Namespace) -> NoReturn:
    ports, controllers = _ports(options.port, options.nodes), _free_ports(options.nodes)
    cluster_id, settings = _cluster_id(data_dir), _read(options.settings)
    folders = [data_dir / f"node-{number}" for number in range(1, options.nodes + 1)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    nodes = [
        Node(java, lib, folder, port, settings, Place(number, controllers, cluster_id))
        for number, (folder, port) in enumerate(zip(folders, ports, strict=True), 1)
    ]
    wanted = False

    def want(_signal: int, _frame: FrameType | None) -> None:
        nonlocal wanted
        wanted = True

    signal.signal(signal.SIGHUP, want)
    with Cluster(nodes) as cluster:
        print("ready " + ",".join(f"{HOST}:{port}" for port in ports), flush=True)
        while True:
            time.sleep(LOOK_EVERY_S)
            now, wanted = wanted, False
            cluster.look(restart=now or options.restart)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run Apache Kafka on loopback, for tests.")
    parser.add_argument(
        "--port", type=int, default=9092, help="port to listen on; 0 means any free port (default: 9092)"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        help=f"number of nodes, 1 to {MOST_NODES}; they take consecutive ports from --port on (default: 1)",
    )
    parser.add_argument(
        "--restart", action="store_true", help="with several nodes: if a node ends, start it again at once"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="folder for the data, kept after the end (default: a temporary folder, which is removed)",
    )
    parser.add_argument(
        "--settings", type=Path, help="file with further settings, which override those of server.properties"
    )
    parser.add_argument("--fetch-only", action="store_true", help="download Kafka's jars, start nothing, and exit")
    options = parser.parse_args()
    if not 0 <= options.port <= 65536 - options.nodes:
        parser.error(f"--port {options.port}: a port is a number from 0 to 65535")
    if not 1 <= options.nodes <= MOST_NODES:
        parser.error(f"--nodes {options.nodes}: must be between 1 and {MOST_NODES}")
    if options.restart and options.nodes == 1:
        parser.error("--restart: one node that ends ends the run; give --nodes 3, or leave --restart out")
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


def _ports(first: int, count: int) -> list[int]:
    if first == 0:
        return _free_ports(count)
    return [_port(port) for port in range(first, first + count)]


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def _cluster_id(data_dir: Path) -> str:
    kept = data_dir / "cluster-id"  # kept, because a node may be formatted later than the others
    if not kept.exists():
        kept.write_text(new_cluster_id())
    return kept.read_text().strip()


if __name__ == "__main__":
    sys.exit(main())
