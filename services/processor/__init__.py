"""Services that process the log as members of a consumer group. A pure core decides; ``Processor`` does the I/O.

Router, safety and rails each have a core. ``Processor`` guarantees the following to a core:

* A partition number stands for the partitions with this number in all topics that are read. One member holds all of
  them. ``gained`` tells the core that it holds a partition number, for which it has no state yet. Then the recent
  records are read. ``caught_up`` is called once all records have been read that were on the log when the partition
  number was gained. A partition number that the member *keeps* in a rebalance causes no call: the core keeps its state,
  and no record is read twice or missed. After ``lost``, no more events are written about the requests of this partition
  number.
* ``read`` gets the records of one partition in order, each at least once. There is no order between the topics of a
  partition number.
* Decisions that depend on time alone are made in ``tick``, which gets a time. It is called only after all records have
  been read that were on the log at this time. So a late alarm, a pause or a slow topic never makes a core decide before
  it has read the records that matter.
* Events are sent in the order in which the core decided on them.
"""

from services.processor.core import Core, Effect, RecordDone, RecordPosition, Write
from services.processor.processor import Processor, ProcessorConfig

__all__ = ["Core", "Effect", "Processor", "ProcessorConfig", "RecordDone", "RecordPosition", "Write"]
