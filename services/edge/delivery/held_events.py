"""Hold back the new events of a request until the ops of its earlier events have been sent to the client."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Recall
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.log.positions import LoggedEvent

MAX_HELD_EVENTS: Final = 20_000
"""Maximum number of kept events. If more arrive before the client has read the history, the stream ends as ``slow``."""


class HeldEvents:
    """The events that are held back for one client, until the ops of earlier events have been sent to the client.

    Attributes:
        recall_pending: Whether a held event is a recall. If so, the sender must stop and call ``next_ops``, so that it
            does not send text that was taken back.
    """

    __slots__ = ("_events", "recall_pending")

    def __init__(self) -> None:
        self._events: list[LoggedEvent] = []
        self.recall_pending = False

    def hold(self, logged: LoggedEvent) -> bool:
        """Add an event. Return False if there are now more than ``MAX_HELD_EVENTS`` held events."""
        self._events.append(logged)
        self.recall_pending = self.recall_pending or type(logged.event) is Recall
        return len(self._events) <= MAX_HELD_EVENTS

    def next_ops(self, session: DeliverySession, unsent: Sequence[PositionedOp], end_offset: int) -> CatchUpOps | None:
        """Remove the held events and apply them to the session. Return all ops that must still be sent.

        Return None if there are neither held events nor unsent ops.

        Args:
            session: The session to which all earlier events were applied.
            unsent: The ops of earlier events that have not been sent.
            end_offset: The offset after the last earlier event. Held events below this offset are skipped.
        """
        events, self._events = self._events, []
        if not (events or unsent):
            return None
        self.recall_pending = False
        fresh = [item for logged in events if logged.offset >= end_offset for item in session.feed(logged)]
        return session.shorten([*unsent, *fresh])
