from collections.abc import Sequence
from typing import Final

from schemas.stream import Recall
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.log.positions import LoggedEvent

MAX_HELD_EVENTS: Final = 20_000
"""Maximum number of kept events. If more arrive before the client has read the history, the stream ends as ``slow``."""


class HeldEvents:
    """Keeps the new events of a request while the ops of earlier events are still being sent to the client.

    Attributes:
        recall_pending: Whether a kept event is a ``Recall``, which takes text back. If so, the sender must call
            ``next_ops`` before it sends more text.
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
        """Apply the held events to the session. Return ``unsent`` and the new ops, without text that is taken back.

        Args:
            session: The session of the stream.
            unsent: Ops of earlier events that were not sent yet.
            end_offset: The session has already applied the events before this offset, so they are skipped.

        Returns:
            None if there are no held events and no unsent ops.
        """
        events, self._events = self._events, []
        if not (events or unsent):
            return None
        self.recall_pending = False
        new = (logged for logged in events if logged.offset >= end_offset or not session.has_resumed_with(logged))
        fresh = [item for logged in new for item in session.feed(logged)]
        return session.shorten([*unsent, *fresh])
