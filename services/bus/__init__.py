"""The bus: the only code that talks to Kafka.

``Producer`` writes the events of its role. ``GroupReader`` reads the partitions that a consumer group assigns to it.
``TailReader`` reads partitions that the caller chooses. ``ensure_topics`` creates missing topics. Handlers are
synchronous, and the read loop never awaits the work on a record.

* Delivery is at least once. An event is on the log twice only if a producer opened a new session while a batch was
  unanswered, or if a caller posted it twice. A worker gets a record again if a rebalance or a crash comes before the
  commit. Folds ignore records that they have already read.
* ``post`` waits while the buffer is full (32 MiB), and returns when the event is buffered. As long as the process
  lives, a buffered event survives any outage of the broker. ``stop`` waits ten seconds for acknowledgements, and logs
  how many events have none.
* The second and later chunks of a run may wait for ``RAILBUS_KAFKA_LINGER_MS`` to share a batch. All other events are
  sent at once, together with the chunks that are waiting.
* ``services.bus.read`` fetches over aiokafka's connections with its own read loop. With aiokafka's consumer, reading
  took three times the CPU, and a new ``follow`` waited until the pending long poll ended.
* A ``GroupReader`` without a handler reads nothing. An edge has one only so that the group assigns home partitions to
  the edge. New requests of this edge go to its home partitions.
"""

from services.bus.errors import BusError, EventRejected, NotAcknowledged, ProducerClosed
from services.bus.groups.group_reader import GroupReader
from services.bus.groups.held_partitions import Assignment
from services.bus.in_flight_limit import InFlightLimit
from services.bus.kafka.topics import ensure_topics, partition_counts, wanted_replication
from services.bus.partitioner import partition_for
from services.bus.read.log_clock import BrokerOffset, LogClock
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
    "EventRejected",
    "GroupReader",
    "InFlightLimit",
    "LogClock",
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
    "ensure_topics",
    "filter_for_role",
    "partition_counts",
    "partition_for",
    "wanted_replication",
    "write_raw_records",
]
