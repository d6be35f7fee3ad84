"""Alarms of many requests in one heap: an alarm that moved is found out when it rings. Pure."""

import heapq


class Alarms:
    """Which request to look at next, and when. Times are microseconds since the epoch."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    @property
    def first(self) -> tuple[int, str] | None:
        """The one that rings first, and for which request."""
        return self._heap[0] if self._heap else None

    def set(self, at_us: int, request_id: str) -> None:
        """One more alarm; earlier ones of the request stay."""
        heapq.heappush(self._heap, (at_us, request_id))

    def drop_first(self) -> None:
        """Discard the one that would ring first."""
        heapq.heappop(self._heap)

    def ring(self, now_us: int) -> list[str]:
        """Take out what is due, each request once."""
        due: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now_us:
            due[heapq.heappop(self._heap)[1]] = None
        return list(due)
