"""Whether anybody still waits for the answer. Pure."""

from schemas.books import Attached, Detached


class Clients:
    """The connections of one request.

    Somebody who never attached (an upstream app that reads the log itself) is never gone. A connection that ended
    ``complete`` has what it came for, so its end starts no clock either.
    """

    __slots__ = ("_here", "gone_since_us")

    def __init__(self) -> None:
        self._here: set[str] = set()
        self.gone_since_us: int | None = None

    def attach(self, event: Attached) -> None:
        """A connection more."""
        self._here.add(event.connection)
        self.gone_since_us = None

    def detach(self, event: Detached, at_us: int) -> None:
        """A connection less; the last one starts the clock."""
        self._here.discard(event.connection)
        if not self._here and event.reason != "complete":
            self.gone_since_us = at_us
