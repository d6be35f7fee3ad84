"""Measure the difference between the clock of each service instance and the broker's clock."""

from collections import OrderedDict
from typing import Final, get_args

from schemas.base import AnyEvent, Event
from schemas.registry import RoleName
from schemas.requests import Request

WINDOW_US: Final = 30_000_000
"""Minimum time in microseconds for which a source is measured before its skew is known.

In this time, at least one event of the source should be appended without delay after its creation.
"""

LEAST_SAMPLES: Final = 3

WARN_MS: Final = 500.0

MAX_SOURCES: Final = 1_000
"""Maximum number of sources remembered. Beyond it, the source that was silent for longest is forgotten."""

SILENT_US: Final = 600_000_000
"""A source that has been silent for this many microseconds does not count. For example, another process, which has
another name, has replaced it."""

_SERVICES: Final = frozenset(get_args(RoleName))


class _Source:
    __slots__ = ("began_us", "heard_us", "most_us", "samples", "skew_ms", "warned")

    def __init__(self, now_us: int) -> None:
        self.began_us = self.heard_us = now_us
        self.most_us = -(2**63)
        self.samples = 0
        self.skew_ms = 0.0
        self.warned = False


class SkewMeter:
    """Compares the time that a writer put into an event with the time at which the broker appended the event.

    A source is the service instance that wrote an event. Its skew is the writer's time minus the broker's time.
    """

    def __init__(self) -> None:
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def note(self, event: AnyEvent, timestamp_ms: int, now_us: int) -> tuple[str, float] | None:
        """Use an event to measure the skew of its source.

        If a warning is due, return the source and its skew in milliseconds, else None.

        A warning is due once for each source, when the skew reaches ``WARN_MS`` in either direction.
        """
        written_us = _written_us(event)
        if written_us is None or not isinstance(event, Event) or timestamp_ms <= 0:
            return None
        name = event.source
        source = self._sources.get(name)
        if source is None:
            source = self._sources[name] = _Source(now_us)
            if len(self._sources) > MAX_SOURCES:
                self._sources.popitem(last=False)
        self._sources.move_to_end(name)
        source.heard_us = now_us
        source.samples += 1
        source.most_us = max(source.most_us, written_us - timestamp_ms * 1_000)
        if now_us - source.began_us < WINDOW_US or source.samples < LEAST_SAMPLES:
            return None
        # This is too small by the shortest delay between the creation of an event and its append.
        source.skew_ms = source.most_us / 1_000
        source.began_us, source.most_us, source.samples = now_us, -(2**63), 0
        if source.warned or abs(source.skew_ms) < WARN_MS:
            return None
        source.warned = True
        return name, source.skew_ms

    def worst_ms(self, now_us: int) -> dict[str, float]:
        """Return the largest skew of each service, in milliseconds.

        The skew of a source counts as 0 if the source has been silent for ``SILENT_US``.
        """
        worst: dict[str, float] = {}
        for name, source in self._sources.items():
            service = name.partition("/")[0]
            service = service if service in _SERVICES else "other"
            skew_ms = source.skew_ms if now_us - source.heard_us < SILENT_US else 0.0
            if abs(skew_ms) >= abs(worst.get(service, 0.0)):
                worst[service] = skew_ms
        return worst


def _written_us(event: AnyEvent) -> int | None:
    if not isinstance(event, Event):
        return None
    if not isinstance(event, Request):
        return event.at
    return event.at + int(event.waited_ms * 1_000) if event.attempt == 1 else None  # routers write later attempts
