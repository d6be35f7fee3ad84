"""The base of the router, safety and rails services. Each of them reads the log as a member of a consumer group.

A service makes its decisions in a subclass of ``Core``, without I/O. ``Processor`` does the I/O and calls the methods
of the core.

A partition number stands for the partitions with this number in all topics that the service reads. One member of the
group holds all of these partitions. ``Processor`` guarantees the following:

* When a member gets a partition number, ``gained`` is called before any record is passed to ``read``.
* If ``ProcessorConfig.rewind_ms`` is set, ``read`` first gets older records, so that the core can restore its state.
  ``caught_up`` is called as soon as ``read`` has got every record that was on the log at the time of ``gained``. Before
  that, ``tick`` is not called.
* If a member keeps a partition number in a rebalance, neither ``lost`` nor ``gained`` is called, and no record is
  repeated or skipped.
* After ``lost``, events about requests of this partition number are dropped, unless the producer already has them.
* ``read`` gets the records of one partition in order, each at least once. Records of different topics have no order.
* ``tick`` makes the decisions that depend on time. Before it is called with a time ``known_us``, ``read`` has got every
  record that was appended before ``known_us``.
* Events are written in the order in which the core returned them.
"""

from services.processor.core import Core, Effect, RecordDone, RecordPosition, Write
from services.processor.processor import Processor, ProcessorConfig

__all__ = ["Core", "Effect", "Processor", "ProcessorConfig", "RecordDone", "RecordPosition", "Write"]
