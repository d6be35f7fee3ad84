"""The bus: the only code that speaks to Kafka.

``Producer`` writes the events of its role, ``GroupReader`` shares partitions among workers, ``TailReader`` follows
chosen partitions, ``ensure_topics`` creates what is missing. Handlers are synchronous: the loop never awaits the work.

What a caller may rely on, and what it must know:

* Delivery is at least once. An event is on the log twice only when a producer had to open a new session while a batch
  was unanswered, or when a caller posted it twice; a worker sees a record again after a rebalance or a crash that came
  before the commit. Folds ignore what they have seen.
* ``post`` returns when the event is buffered (32 MiB at most, then it waits). It then survives any outage of the broker
  as long as the process lives; ``stop`` waits ten seconds for acknowledgements and names what is missing.
* Only chunks after a run's first linger (``RAILBUS_KAFKA_LINGER_MS``). An event that must go at once takes along what
  waits.
* Reading uses a fetch loop of our own (``fetcher``) on aiokafka's connections, because aiokafka's consumer cost three
  times the CPU and let a new ``follow`` wait behind the long poll before it.
* A ``GroupReader`` without handler only deals partitions out, for an edge's homes.
"""

from services.bus.errors import BusError, Closed, NotSent, Refused
from services.bus.group import GroupReader
from services.bus.holding import Assignment
from services.bus.partition import partition_for
from services.bus.producer import Producer
from services.bus.raw import Raw, put_raw
from services.bus.records import AtTime, Handler, Position, Received, TopicPartitions, Unread, Wants, wants_of
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.bus.tail import TailReader
from services.bus.topics import ensure_topics, partition_counts

__all__ = [
    "Assignment",
    "AtTime",
    "BusError",
    "BusSettings",
    "Closed",
    "GroupReader",
    "Handler",
    "NotSent",
    "Position",
    "Producer",
    "Raw",
    "Received",
    "Refused",
    "Room",
    "TailReader",
    "TopicPartitions",
    "Unread",
    "Wants",
    "ensure_topics",
    "partition_counts",
    "partition_for",
    "put_raw",
    "wants_of",
]
