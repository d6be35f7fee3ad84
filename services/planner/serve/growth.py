"""Estimate the CPU cores, partitions and brokers that a number of simultaneous answers needs."""

import math
from dataclasses import dataclass
from typing import Final

CHUNKS_PER_CORE: Final = 2_500.0
"""Chunks per second per core for edge, broker, generator and router together: 50 streams x 50 chunks/s (sizing.md)."""

CHUNKS_PER_PARTITION: Final = 2_500.0
"""Maximum chunks per second in one partition. In each service, one process on one core reads a partition."""

CHUNK_BYTES: Final = 300.0
"""Bytes of a chunk before compression (sizing.md)."""

COPIES: Final = 3
READERS: Final = 4
"""Number of groups that read each chunk: edge, router, safety, and one for audit or archive."""

BROKER_BYTES: Final = 0.6 * 10e9 / 8
"""Bytes per second that a broker sends: 60 % of a link of 10 Gbit/s."""

BROKER_PARTITIONS: Final = 4_000
"""Maximum number of partition replicas on a broker. The usual advice for clusters without ZooKeeper is higher."""

LARGEST_TOPIC: Final = 1_024
"""Maximum number of partitions of a topic; more were never tried. A plan that needs more has several cells."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A load, and the resources that the services and Kafka need for it.

    Attributes:
        streams: Number of answers that run at the same time.
        chunks: Chunks per second.
        cores: Number of CPU cores for all services, without models.
        partitions: Number of partitions of ``railbus.streams``, over all cells.
        brokers: Number of Kafka brokers, over all cells.
        cells: Number of separate installations that share the load.
    """

    streams: int
    chunks: float
    cores: int
    partitions: int
    brokers: int
    cells: int


def growth(streams: int, token_ms: float) -> Growth:
    """Return how many CPU cores, partitions, brokers and separate installations are needed.

    Args:
        streams: Number of answers at the same time.
        token_ms: Milliseconds between two chunks of an answer.
    """
    chunks = streams * 1e3 / token_ms
    partitions = 2 ** math.ceil(math.log2(max(4.0, chunks / CHUNKS_PER_PARTITION)))
    sent = chunks * CHUNK_BYTES * (READERS + COPIES - 1)
    brokers = max(COPIES, math.ceil(sent / BROKER_BYTES), math.ceil(partitions * COPIES / BROKER_PARTITIONS))
    cells = max(1, partitions // LARGEST_TOPIC)
    return Growth(
        streams=streams, chunks=chunks, cores=math.ceil(chunks / CHUNKS_PER_CORE), partitions=partitions,
        brokers=max(brokers, cells * COPIES), cells=cells,
    )  # fmt: skip
