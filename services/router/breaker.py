"""The circuit breaker of the self-hosted path: while it is sick, nobody waits for it to be late once more. Pure."""

from collections import deque
from typing import Final, Literal

State = Literal["closed", "open", "half_open"]

LOOK_BACK: Final = 10
"""The newest judgements that are counted."""

STALE_US: Final = 30_000_000
"""Judgements older than this say nothing about now, in microseconds."""

REST_US: Final = 2_000_000
"""How long it stays open before a few requests probe, and how long a probe may take to be judged."""

PROBES: Final = 3
"""Requests that probe at a time; when all of them are served, the breaker closes."""


class Breaker:
    """Times are arguments, in microseconds since the epoch.

    Args:
        trip: So many failures among the newest ``LOOK_BACK`` judgements open it; 0 keeps it closed for ever.
    """

    def __init__(self, trip: int) -> None:
        self._trip = trip
        self.state: State = "closed"
        self._judged: deque[tuple[int, bool]] = deque(maxlen=LOOK_BACK)
        self._until_us = 0
        self._probes_left = 0
        self._probes_served = 0

    def admits(self, now_us: int) -> Literal["yes", "probe", "no"]:
        """Whether a new request should try the self-hosted path; ``probe``: it should, and its fate decides."""
        if self.state == "closed":
            return "yes"
        if now_us >= self._until_us:
            self.state = "half_open"
            self._until_us = now_us + REST_US
            self._probes_left = PROBES
            self._probes_served = 0
        if self.state == "half_open" and self._probes_left:
            self._probes_left -= 1
            return "probe"
        return "no"

    def judge(self, now_us: int, *, served: bool, probe: bool = False) -> None:
        """The self-hosted path served a request in time, or did not. While it is not closed only probes count."""
        if self.state == "closed":
            self._judged.append((now_us, served))
            failures = sum(1 for at_us, good in self._judged if not good and now_us - at_us <= STALE_US)
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
        self._until_us = now_us + REST_US
        self._judged.clear()
