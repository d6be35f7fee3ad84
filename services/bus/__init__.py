"""The bus: the only code that speaks to Kafka.

``Producer`` writes events, ``GroupReader`` shares partitions among workers, ``TailReader`` follows chosen partitions,
``ensure_topics`` creates what is missing. Handlers are synchronous: the loop never awaits the work.
"""

from services.bus.errors import BusError, Closed, NotSent, Refused
from services.bus.group import GroupReader
from services.bus.partition import partition_for
from services.bus.producer import Producer
from services.bus.records import AtTime, Handler, Position, Received, TopicPartitions, Unread, Wants
from services.bus.room import Room
from services.bus.settings import BusSettings
from services.bus.tail import TailReader
from services.bus.topics import ensure_topics, partition_counts

__all__ = [
    "AtTime",
    "BusError",
    "BusSettings",
    "Closed",
    "GroupReader",
    "Handler",
    "NotSent",
    "Position",
    "Producer",
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
]
