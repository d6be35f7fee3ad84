"""One way to be a member of a group that works on the log: a pure core that decides, one shell that does the I/O.

Router, safety and rails are cores. What the shell (``Processor``) promises a core:

* A partition number stands for that partition of every topic that is read; one member has all of them. A number is
  ``gained`` with nothing known of it. Its recent past is then read, and ``caught_up`` says that everything was read
  that stood on the log when it was gained. A number that is *kept* over a rebalance is not mentioned: same state,
  nothing read twice, nothing lost. After ``lost`` nothing more is written about its requests.
* ``read`` gets records in the order of their partition, at least once. Between the topics of a number there is no
  order.
* The clock alone decides only in ``tick``, and only when everything was read that stood on the log at the time it is
  told. So a late alarm, a pause, or a topic that lags never makes a core decide about what it has not read.
* Writes leave in the order in which they were decided.
"""

from services.processor.core import Core, Done, Effect, Place, Write
from services.processor.log_clock import LogClock
from services.processor.processor import Processor, Reading

__all__ = ["Core", "Done", "Effect", "LogClock", "Place", "Processor", "Reading", "Write"]
