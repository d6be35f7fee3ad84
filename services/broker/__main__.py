"""Run the embedded broker until SIGTERM or SIGINT: `python -m services.broker`."""

import argparse
import asyncio
import contextlib
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from services.broker.service import BrokerService
from services.broker.settings import DISK_RETENTION_BYTES, MEMORY_RETENTION_BYTES, BrokerSettings
from services.broker.storage.file_segment import MAX_OPEN_SEGMENTS
from services.broker.storage.topics import MAX_PARTITIONS
from services.runtime.process import run, say_ready

_OWN_FILES: Final = 64  # the lock, the offsets file, the listening socket, standard streams


def arguments(argv: Sequence[str] | None = None) -> BrokerSettings:
    default = BrokerSettings()
    parser = argparse.ArgumentParser(
        prog="python -m services.broker",
        description="The embedded Kafka-protocol broker, for development, tests and demos. Loopback only.",
    )
    parser.add_argument("--host", default=default.host, help="loopback address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=default.port, help="port to listen on; 0 means any free port (default: %(default)s)"
    )
    parser.add_argument(
        "--data-dir", type=Path, help="folder that keeps the log across restarts (default: only memory)"
    )
    parser.add_argument(
        "--partitions", type=int, default=default.partitions,
        help="number of partitions of a topic that is created at its first use (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--no-auto-create-topics", action="store_true", help="do not create a topic at its first use")
    parser.add_argument(
        "--retention-bytes", type=int,
        help="maximum number of bytes kept per partition, unless the topic has its own limit; -1 means no limit"
        f" (default: {DISK_RETENTION_BYTES} with --data-dir, else {MEMORY_RETENTION_BYTES})",
    )  # fmt: skip
    parser.add_argument(
        "--memory-bytes", type=int, default=default.memory_bytes,
        help="without --data-dir: maximum number of bytes kept by all partitions together (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--max-connections",
        type=int,
        default=default.max_connections,
        help="maximum number of connections (default: %(default)s)",
    )
    parser.add_argument(
        "--min-session-ms", type=int, default=default.min_session_ms,
        help="minimum session timeout of a consumer group's member, in ms (default: %(default)s)",
    )  # fmt: skip
    given = parser.parse_args(argv)
    return BrokerSettings(
        host=given.host,
        port=given.port,
        data_dir=given.data_dir,
        partitions=given.partitions,
        auto_create_topics=not given.no_auto_create_topics,
        retention_bytes=given.retention_bytes,
        memory_bytes=given.memory_bytes,
        max_connections=given.max_connections,
        min_session_ms=given.min_session_ms,
    )


def allow_open_files(connections: int) -> None:
    """Raise this process's limit of open files if it is too low, but not above the hard limit.

    Each of the ``connections`` and each partition on disk needs an open file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + MAX_PARTITIONS + MAX_OPEN_SEGMENTS + _OWN_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses some values below the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


async def serve(settings: BrokerSettings) -> None:
    allow_open_files(settings.max_connections)
    broker = BrokerService.of(settings)
    await broker.start()
    try:
        say_ready(broker.address)
        await asyncio.Event().wait()
    finally:
        await broker.stop()


def main() -> None:
    settings = arguments()
    run(lambda: serve(settings), "broker")


if __name__ == "__main__":
    main()
