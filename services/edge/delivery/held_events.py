"""The events that arrive while a client reads the history of its answer, and whether they change the rest. Pure."""

from collections.abc import Sequence
from typing import Final

from schemas.stream import Recall
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.log.positions import LoggedEvent

MAX_HELD_EVENTS: Final = 20_000
"""Maximum number of events held while a client reads the history. A client for which more arrive is too slow."""


class HeldEvents:
    """The events of a request that are not folded yet, because its client has not read the earlier ones.

    Attributes:
        recall_pending: Whether a held event may take back text that is not sent yet. If so, send no more of the old
            history.
    """

    __slots__ = ("_events", "recall_pending")

    def __init__(self) -> None:
        self._events: list[LoggedEvent] = []
        self.recall_pending = False

    def hold(self, logged: LoggedEvent) -> bool:
        """Keep an event; return False if there are too many."""
        self._events.append(logged)
        self.recall_pending = self.recall_pending or type(logged.event) is Recall
        return len(self._events) <= MAX_HELD_EVENTS

    def next_ops(self, session: DeliverySession, unsent: Sequence[PositionedOp], end_offset: int) -> CatchUpOps | None:
        """Fold the held events. Return the ops to send instead of the unsent ones, or None if nothing is left to send.

        Args:
            session: The fold, which has taken the history.
            unsent: The ops of the history that were not sent, because a recall came.
            end_offset: Offset of the first event after the history.
        """
        events, self._events = self._events, []
        if not (events or unsent):
            return None
        self.recall_pending = False
        fresh = [item for logged in events if logged.offset >= end_offset for item in session.feed(logged)]
        return session.shorten([*unsent, *fresh])
