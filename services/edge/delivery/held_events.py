"""Keep the events that arrive while a client is sent the history of its answer. Pure."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Recall
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.log.positions import LoggedEvent

MAX_HELD_EVENTS: Final = 20_000
"""Maximum number of kept events. If more arrive before the client has read the history, the stream ends as ``slow``."""


class HeldEvents:
    """Events of a request that are not folded yet, because the client has not read the ops of earlier events.

    Attributes:
        recall_pending: Whether one of the events is a recall. If so, the caller must call ``next_ops`` before it sends
            more of the history, because the recall may take back text of the history that was not sent yet.
    """

    __slots__ = ("_events", "recall_pending")

    def __init__(self) -> None:
        self._events: list[LoggedEvent] = []
        self.recall_pending = False

    def hold(self, logged: LoggedEvent) -> bool:
        """Keep an event. Return False if there are more than ``MAX_HELD_EVENTS`` now."""
        self._events.append(logged)
        self.recall_pending = self.recall_pending or type(logged.event) is Recall
        return len(self._events) <= MAX_HELD_EVENTS

    def next_ops(self, session: DeliverySession, unsent: Sequence[PositionedOp], end_offset: int) -> CatchUpOps | None:
        """Fold the kept events. Return all ops that the client still lacks, or None if it lacks none.

        Args:
            session: The fold of the request, which has taken the events of the history.
            unsent: The ops of the history that were not sent, because a recall arrived.
            end_offset: Offset of the first event after the history. Kept events with smaller offsets are in the history
                already, and are left out.
        """
        events, self._events = self._events, []
        if not (events or unsent):
            return None
        self.recall_pending = False
        fresh = [item for logged in events if logged.offset >= end_offset for item in session.feed(logged)]
        return session.shorten([*unsent, *fresh])
