"""Compute the cores, partitions and brokers that a number of simultaneous streams needs. Not measured. Pure."""

import math
from dataclasses import dataclass
from typing import Final

CHUNKS_PER_CORE: Final = 2_500.0
"""Chunks a second that one core carries through edge, broker, generator and router: 50 streams of 50 (sizing.md)."""

CHUNKS_PER_PARTITION: Final = 2_500.0
"""Maximum chunks a second in one partition. One process of each kind reads a partition, with at most one core."""

CHUNK_BYTES: Final = 300.0
"""Bytes of a chunk before compression (sizing.md)."""

COPIES: Final = 3
READERS: Final = 4
"""Number of groups that read each chunk: edge, router, safety, and one for audit or archive."""

BROKER_BYTES: Final = 0.6 * 10e9 / 8
"""Bytes a second that a broker sends: 60 % of a link of 10 Gbit/s."""

BROKER_PARTITIONS: Final = 4_000
"""Maximum number of partition replicas on a broker. The usual advice for clusters without ZooKeeper is higher."""

LARGEST_TOPIC: Final = 1_024
"""Partitions of a topic beyond which the plan splits the system into cells of their own; never tried here with more."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The needs of the pipeline.

    Attributes:
        streams: Answers that run at once.
        chunks: Chunks per second.
        cores: Cores for the pipeline, without models.
        partitions: Partitions of ``railbus.streams``, a power of two, in all cells.
        brokers: Kafka brokers, in all cells.
        cells: Independent installations that share the load.
    """

    streams: int
    chunks: float
    cores: int
    partitions: int
    brokers: int
    cells: int


def growth(streams: int, token_ms: float) -> Growth:
    """Return the needs of this number of streams, with one chunk per step of the engine."""
    chunks = streams * 1e3 / token_ms
    partitions = 2 ** math.ceil(math.log2(max(4.0, chunks / CHUNKS_PER_PARTITION)))
    sent = chunks * CHUNK_BYTES * (READERS + COPIES - 1)
    brokers = max(COPIES, math.ceil(sent / BROKER_BYTES), math.ceil(partitions * COPIES / BROKER_PARTITIONS))
    cells = max(1, partitions // LARGEST_TOPIC)
    return Growth(
        streams=streams, chunks=chunks, cores=math.ceil(chunks / CHUNKS_PER_CORE), partitions=partitions,
        brokers=max(brokers, cells * COPIES), cells=cells,
    )  # fmt: skip
