"""The circuit breaker of the self-hosted engines. While it is open, new requests go straight to the cloud.

No I/O, no clock.
"""

from collections import deque
from typing import Final, Literal

from schemas.side_events import BreakerState

MAX_OUTCOMES: Final = 10
"""Maximum number of requests whose outcomes count: the newest ones."""

STALE_US: Final = 30_000_000
"""Outcomes of requests do not count if they are older than this many microseconds."""

OPEN_US: Final = 2_000_000
"""Microseconds for which the breaker stays open before it admits probes, and for which it waits for their outcomes."""

PROBES: Final = 3
"""Number of concurrent probes. When all of them were served in time, the breaker closes."""


class Breaker:
    """A circuit breaker. Times are microseconds since the epoch.

    Args:
        trip: If this many of the newest ``MAX_OUTCOMES`` requests were not served in time, the breaker opens. 0 means
            that it never opens.
    """

    def __init__(self, trip: int) -> None:
        self._trip = trip
        self.state: BreakerState = "closed"
        self._outcomes: deque[tuple[int, bool]] = deque(maxlen=MAX_OUTCOMES)
        self._until_us = 0
        self._probes_left = 0
        self._probes_served = 0

    def admits(self, now_us: int) -> Literal["yes", "probe", "no"]:
        """Return whether a new request goes to the self-hosted engines: ``yes``, ``no`` or ``probe``.

        A ``probe`` goes to the engines, too. It is one of ``PROBES`` requests that test whether the engines work again.
        """
        if self.state == "closed":
            return "yes"
        if now_us >= self._until_us:
            self.state = "half_open"
            self._until_us = now_us + OPEN_US
            self._probes_left = PROBES
            self._probes_served = 0
        if self.state == "half_open" and self._probes_left:
            self._probes_left -= 1
            return "probe"
        return "no"

    def record(self, now_us: int, *, served: bool, probe: bool = False) -> None:
        """Record whether the self-hosted engines served a request in time."""
        if self.state == "closed":
            self._outcomes.append((now_us, served))
            failures = sum(1 for at_us, good in self._outcomes if not good and now_us - at_us <= STALE_US)
            if failures >= self._trip > 0:
                self._open(now_us)
        elif self.state == "half_open" and probe:
            if not served:
                self._open(now_us)
                return
            self._probes_served += 1
            if self._probes_served == PROBES:
                self.state = "closed"

    def _open(self, now_us: int) -> None:
        self.state = "open"
        self._until_us = now_us + OPEN_US
        self._outcomes.clear()
