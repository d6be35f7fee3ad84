"""The bus: the only code that talks to Kafka.

``Producer`` writes the events of its role, ``GroupReader`` shares partitions among workers, ``TailReader`` follows
chosen partitions, ``ensure_topics`` creates what is missing. Handlers are synchronous: the loop never awaits the work.

* Delivery is at least once. An event is on the log twice only when a producer opened a new session while a batch was
  unanswered, or when a caller posted it twice. A worker gets a record again after a rebalance or a crash before the
  commit. Folds ignore what they have read already.
* ``post`` returns when the event is buffered. It waits while the buffer holds 32 MiB. A buffered event survives any
  outage of the broker while the process lives. ``stop`` waits ten seconds for acknowledgements, and logs what is
  missing.
* Only chunks after a run's first linger (``RAILBUS_KAFKA_LINGER_MS``). An urgent event sends everything that lingers
  with it.
* ``services.bus.read`` fetches over aiokafka's connections with a loop of its own: aiokafka's consumer cost three times
  the CPU, and a new ``follow`` had to wait until the pending long poll ended.
* A ``GroupReader`` without a handler only assigns partitions, for an edge's home partitions.
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
