"""Keep new events of a request while the ops of earlier events are sent to its client."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Recall
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.log.positions import LoggedEvent

MAX_HELD_EVENTS: Final = 20_000
"""Maximum number of kept events. If more arrive before the client has read the history, the stream ends as ``slow``."""


class HeldEvents:
    """New events of a request that wait until the ops of earlier events have been sent to a client.

    Attributes:
        recall_pending: Whether one of the waiting events is a recall. If so, stop sending and call ``next_ops``.
    """

    __slots__ = ("_events", "recall_pending")

    def __init__(self) -> None:
        self._events: list[LoggedEvent] = []
        self.recall_pending = False

    def hold(self, logged: LoggedEvent) -> bool:
        """Keep an event. Return False if more than ``MAX_HELD_EVENTS`` are kept now."""
        self._events.append(logged)
        self.recall_pending = self.recall_pending or type(logged.event) is Recall
        return len(self._events) <= MAX_HELD_EVENTS

    def next_ops(self, session: DeliverySession, unsent: Sequence[PositionedOp], end_offset: int) -> CatchUpOps | None:
        """Apply the kept events to the session. Return all ops that must still be sent, or None if there are none.

        Args:
            session: The state of the request after the earlier events.
            unsent: The ops of earlier events that were not sent.
            end_offset: The offset after the last earlier event. Kept events below this offset are skipped.
        """
        events, self._events = self._events, []
        if not (events or unsent):
            return None
        self.recall_pending = False
        fresh = [item for logged in events if logged.offset >= end_offset for item in session.feed(logged)]
        return session.shorten([*unsent, *fresh])
