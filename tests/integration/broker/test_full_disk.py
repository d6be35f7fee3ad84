"""Test that a full disk causes one clear error, that all records stay readable, and that freed space is used again."""

import subprocess
import sys

import pytest

from services.broker.protocol.error_codes import ErrorCode
from tests.support.chunk_log import (
    Connection,
    chunk_batch,
    count_chunks,
    create_topic,
    delete_topic,
    produce,
)
from tests.support.processes import ROOT, die_with_parent, free_port
from tests.support.waiting import wait_until

# A file system of 4 MiB that only the broker's process sees. It needs no root user, and leaves nothing behind.
ON_SMALL_DISK = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
MOUNTED = 'mount -t tmpfs -o size=4m none "$0" && exec "$@"'

SMALL_SEGMENTS = {"retention.bytes": str(64 << 20), "segment.bytes": str(1 << 20)}


def can_mount(folder) -> bool:
    try:
        done = subprocess.run([*ON_SMALL_DISK, MOUNTED, folder, "true"], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@pytest.fixture
def broker(tmp_path):
    """Start a broker on a file system of 4 MiB. Yield its address and the file with its standard error."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not can_mount(str(folder)):
        pytest.skip("this user may not mount a file system, not even in a namespace of its own")
    port, said = free_port(), tmp_path / "said"
    broker = [sys.executable, "-m", "services.broker", "--port", str(port), "--data-dir", f"{folder}/data"]
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [*ON_SMALL_DISK, MOUNTED, str(folder), *broker], cwd=ROOT, stdout=-1, stderr=errors,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ready"), said.read_text()
    yield f"127.0.0.1:{port}", said
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


def test_a_full_disk_is_one_error_and_the_broker_reads_on(broker):
    address, said = broker
    connection = Connection(address)
    for topic in ("kept", "spare"):
        create_topic(connection, topic, 1, SMALL_SEGMENTS)
    batch = chunk_batch(100)
    for _ in range(20):
        assert produce(connection, "spare", batch) == 0
    written = 0
    while (code := produce(connection, "kept", batch)) == ErrorCode.NONE:
        written += 1
        assert written < 1_000, "the disk does not get full"
    assert code == ErrorCode.KAFKA_STORAGE_ERROR
    assert written > 50
    for _ in range(5):
        assert produce(connection, "kept", batch) == ErrorCode.KAFKA_STORAGE_ERROR
    assert count_chunks(address, "kept", [0]) == written * 100
    wait_until(lambda: "free some space" in said.read_text(), "the operator is told")
    assert said.read_text().count("cannot be written") == 1
    assert "No space left on device" in said.read_text()

    delete_topic(connection, "spare")
    assert produce(connection, "kept", batch) == ErrorCode.NONE
    assert count_chunks(address, "kept", [0]) == (written + 1) * 100
    connection.close()
