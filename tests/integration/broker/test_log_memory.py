"""Test that a broker with a data folder keeps all records on disk, and that its memory does not grow with its log."""

import psutil
import pytest

from tests.support.brokers import Broker
from tests.support.chunk_log import Connection, count_chunks, create_topic, fill

CHUNKS = 200_000
PARTITIONS = 4
TEXT = " token" * 100  # so that the log is several times as large as what a broker needs at all


@pytest.fixture
def broker(tmp_path):
    running = Broker("embedded", tmp_path / "data")
    running.start()
    yield running
    if running.is_running():
        assert running.stop() == 0, running.said()


def rss_bytes(broker: Broker) -> int:
    return psutil.Process(broker.pid).memory_info().rss


@pytest.mark.slow
def test_200_000_chunks_are_kept_and_memory_does_not_grow_with_them(broker: Broker) -> None:
    connection = Connection(broker.address)
    create_topic(connection, "chunks", PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
    connection.close()
    before = rss_bytes(broker)
    size = fill(broker.address, "chunks", PARTITIONS, CHUNKS, text=TEXT)
    assert size > 150_000_000
    # A broker that held the log would have grown by all of it.
    assert rss_bytes(broker) - before < size // 3
    assert count_chunks(broker.address, "chunks", range(PARTITIONS)) == CHUNKS
    assert rss_bytes(broker) - before < size // 3
    broker.kill()
    broker.start()
    assert count_chunks(broker.address, "chunks", range(PARTITIONS)) == CHUNKS
    assert rss_bytes(broker) - before < size // 3
    assert broker.said().count("incomplete") == 0
