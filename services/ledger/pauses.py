"""Notice that the ledger's process was paused for longer than the session timeout of its consumer group."""

import asyncio
from typing import Final

from services.runtime.clock import steady_us
from services.runtime.errors import UnavailableError

TICK_S: Final = 1.0
"""Maximum time between two ticks of ``PauseWatch.run``, in seconds."""


class PauseWatch:
    """Notices whether the process or its event loop stood still for longer than the session timeout.

    After such a pause, the next owner of the partitions may have written newer values. So this process must write
    nothing more, and must start again.

    Args:
        session_us: The session timeout of the consumer group, in microseconds.

    Attributes:
        tick_s: Time between two ticks, in seconds. It is much shorter than the session timeout.
    """

    def __init__(self, session_us: int) -> None:
        self._session_us = session_us
        self._awake_us = steady_us()
        self.tick_s = min(TICK_S, session_us / 4_000_000)

    def check(self) -> None:
        """Check for a pause. Call this before each write, because other tasks may run before ``run`` does.

        Raises:
            UnavailableError: This process was paused for longer than the session timeout.
        """
        if steady_us() - self._awake_us > self._session_us:
            raise UnavailableError("the ledger was paused for longer than the session timeout; it must start again")

    def restored(self) -> None:
        """Record that the ledger has just restored its table.

        Restoring a large table blocks the event loop for a long time. This time must not count as a pause.
        """
        self._awake_us = steady_us()

    async def run(self) -> None:
        """Tick until cancelled.

        Raises:
            UnavailableError: This process was paused for longer than the session timeout.
        """
        self._awake_us = steady_us()  # the broker may have been waited for since this object was made
        while True:
            await asyncio.sleep(self.tick_s)
            self.check()
            self._awake_us = steady_us()
