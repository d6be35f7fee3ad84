"""The bus: the only code that talks to Kafka.

``Producer`` writes events. ``GroupReader`` reads the partitions that a consumer group assigns to it. ``TailReader``
reads partitions that the caller chooses. ``ensure_topics`` creates missing topics.

* Delivery is at least once. After an error of the broker or the network, a producer may write an event twice. A
  ``GroupReader`` reads a record again if a rebalance or a crash comes before the commit of its offset. Services that
  build a state from events ignore the second copy of an event.
* ``Producer.post`` returns when the event is in the producer's buffer (32 MiB), and waits while the buffer is full. As
  long as the process lives, no outage of the broker removes an event from the buffer.
* A reader passes records to its handler, a synchronous function. If the work for a record takes long, the
  handler only starts the work, and the reader does not wait until the work is done.
"""

from services.bus.errors import BusError, EventRejected, NotAcknowledged, ProducerClosed
from services.bus.groups.group_reader import GroupReader
from services.bus.groups.held_partitions import Assignment
from services.bus.in_flight_limit import InFlightLimit
from services.bus.kafka.topics import ClusterTopics, cluster_topics, ensure_topics, partition_counts, wanted_replication
from services.bus.partitioner import partition_for
from services.bus.read.log_clock import BrokerOffset, LogClock
from services.bus.read.log_time import LogTime
from services.bus.read.tail import RawTailReader, TailReader
from services.bus.records import (
    AtTime,
    Partition,
    Position,
    Received,
    RecordFilter,
    RecordHandler,
    StoredRecord,
    TopicPartitions,
    UnreadableRecord,
    filter_for_role,
)
from services.bus.settings import BusSettings
from services.bus.write.producer import Producer
from services.bus.write.raw_records import RawRecord, write_raw_records

__all__ = [
    "Assignment",
    "AtTime",
    "BrokerOffset",
    "BusError",
    "BusSettings",
    "ClusterTopics",
    "EventRejected",
    "GroupReader",
    "InFlightLimit",
    "LogClock",
    "LogTime",
    "NotAcknowledged",
    "Partition",
    "Position",
    "Producer",
    "ProducerClosed",
    "RawRecord",
    "RawTailReader",
    "Received",
    "RecordFilter",
    "RecordHandler",
    "StoredRecord",
    "TailReader",
    "TopicPartitions",
    "UnreadableRecord",
    "cluster_topics",
    "ensure_topics",
    "filter_for_role",
    "partition_counts",
    "partition_for",
    "wanted_replication",
    "write_raw_records",
]
