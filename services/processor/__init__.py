"""The base of the router, safety and rails services. Each of them reads the log as a member of a consumer group.

A service makes its decisions in a subclass of ``Core``, without I/O. ``Processor`` does the I/O and calls the methods
of the core.

Partitions are assigned by number. A member that holds partition number 3 holds partition 3 of every topic that the
service reads. ``Processor`` guarantees the following:

* ``gained`` is called before the first ``read`` of a partition number.
* A rebalance does not affect the partition numbers that a member keeps.
* ``read`` gets the records of one partition in order, each at least once. Records of different topics have no order.
* Events are written in the order in which the core returned them.
"""

from services.processor.core import Core, Effect, RecordDone, RecordPosition, Write
from services.processor.processor import Processor, ProcessorConfig

__all__ = ["Core", "Effect", "Processor", "ProcessorConfig", "RecordDone", "RecordPosition", "Write"]
