"""Find the oldest open request of a partition. The partition's next owner reads the log from that request on.

No I/O, no clock.
"""

import heapq
from collections.abc import Collection
from typing import Final

MARGIN_US: Final = 5_000_000
"""Microseconds by which the result of ``mark_us`` is earlier than the first event of the oldest request. This margin is
needed, because the topics of a partition number have no common order."""

SPARE: Final = 1_000
"""Number of entries of closed requests that may accumulate before they are removed."""


class OldestOpen:
    __slots__ = ("_ahead_us", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []  # a closed request's entry is dropped when it gets to the top
        self._ahead_us = 0

    def note(self, request_id: str, log_us: int, at_us: int) -> None:
        """Record an event that may be the first of its request.

        Args:
            request_id: Id of the request.
            log_us: Append time of the event, by the broker's clock.
            at_us: The append time, converted to the clock of this process.
        """
        self._ahead_us = log_us - at_us
        heapq.heappush(self._heap, (log_us, request_id))

    def mark_us(self, requests: Collection[str], besides: str, known_us: int) -> int:
        """Return the append time from which the partition's next owner must read the log.

        The result is ``MARGIN_US`` before the earlier of two times:

        * The append time of the first event of the oldest request in ``requests``.
        * ``known_us``, converted to the broker's clock.

        Args:
            requests: Ids of the unfinished requests.
            besides: Id of a request to leave out, because its account is being written.
            known_us: The time up to which the log was read, by this process's clock.
        """
        if len(self._heap) > 2 * len(requests) + SPARE:
            self._heap = [each for each in self._heap if each[1] in requests]
            heapq.heapify(self._heap)
        own: list[tuple[int, str]] = []
        while self._heap and (self._heap[0][1] == besides or self._heap[0][1] not in requests):
            entry = heapq.heappop(self._heap)
            if entry[1] == besides:
                own.append(entry)
        oldest_us = min([known_us + self._ahead_us, *(log_us for log_us, _ in self._heap[:1])])
        for entry in own:
            heapq.heappush(self._heap, entry)
        return max(0, oldest_us - MARGIN_US)
