"""The base of the router, safety and rails services, which process the log as members of a consumer group.

A service implements its decisions in a ``Core``, which does no I/O. ``Processor`` does the I/O, and guarantees to the
core:

* A partition number stands for the partitions with this number in all topics that are read. One member holds all of
  them.
* When a member gets a partition number, ``gained`` is called. Then recent records are passed to ``read``. ``caught_up``
  is called when all records have been read that were on the log at the call of ``gained``.
* If a member keeps a partition number in a rebalance, no method is called, and no record is repeated or skipped.
* After ``lost``, no more events are written about requests of this partition number.
* ``read`` gets the records of one partition in order, each at least once. Records of different topics have no order.
* ``tick`` makes the decisions that depend on time. It gets a time, and is called after all records have been read that
  were on the log at this time.
* Events are written in the order in which the core returned them.
"""

from services.processor.core import Core, Effect, RecordDone, RecordPosition, Write
from services.processor.processor import Processor, ProcessorConfig

__all__ = ["Core", "Effect", "Processor", "ProcessorConfig", "RecordDone", "RecordPosition", "Write"]
