"""Members of a group that work on the log: a pure core decides, and ``Processor`` does the I/O.

Router, safety and rails are cores. What ``Processor`` guarantees to a core:

* A partition number means that partition of every topic that is read; one member has all of them. After ``gained``
  the core knows nothing about a number. Its recent past is then read, and ``caught_up`` follows when everything was
  read that was on the log at that moment. A number that is *kept* over a rebalance causes no call: its state stays,
  nothing is read twice or missed. After ``lost`` nothing more is written about its requests.
* ``read`` gets records in the order of their partition, at least once. Between the topics of a number there is no
  order.
* Decisions by time alone are made in ``tick``, and only when everything was read that was on the log at the time
  given. So a late alarm, a pause, or a topic that lags never makes a core decide about what it has not read.
* Writes are sent in the order in which they were decided.
"""

from services.processor.core import Core, Effect, RecordDone, RecordPosition, Write
from services.processor.processor import Processor, ProcessorConfig

__all__ = ["Core", "Effect", "Processor", "ProcessorConfig", "RecordDone", "RecordPosition", "Write"]
