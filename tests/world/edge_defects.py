"""Defects of the edge: which partitions it follows, what a client that resumes is sent."""

from collections.abc import Sequence
from dataclasses import replace

from services.edge.delivery.held_events import HeldEvents
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.log.follow_plan import FollowPlan
from services.edge.log.positions import LoggedEvent, OpId
from services.edge.log.request_index import RequestIndex
from services.stream import Op


class IgnoresHolds(FollowPlan):
    """Follows its home partitions only."""

    def unneeded(self) -> frozenset[int]:
        return frozenset(self.followed - self.homes - self._wanted)


class AsksTooSoon(FollowPlan):
    """Takes requests of a partition before it is followed."""

    def assign(self, wanted: frozenset[int]) -> None:
        super().assign(wanted)
        if not self._retired:
            self.homes = wanted


class RemembersGaps(RequestIndex):
    """Believes that it knows the events of a partition that it did not follow for a while."""

    def drop_partition(self, partition: int) -> None:
        """Keep everything."""


class SendsRecalled(DeliverySession):
    """Sends the history as it was, with the text that was taken back since."""

    __slots__ = ()

    def _caught_up(self, already_sent: tuple[Op, ...], rest: Sequence[PositionedOp]) -> CatchUpOps:
        return CatchUpOps(already_sent, tuple(rest), splittable=True)


class SplitsShortened(DeliverySession):
    """Sends a history that was shortened twice in pieces, which share one position."""

    __slots__ = ()

    def _caught_up(self, already_sent: tuple[Op, ...], rest: Sequence[PositionedOp]) -> CatchUpOps:
        caught_up = super()._caught_up(already_sent, rest)
        same = caught_up.ops == tuple(rest)
        return replace(caught_up, splittable=True) if same else caught_up


class StartsOver(DeliverySession):
    """Sends a client that resumes everything from the beginning."""

    __slots__ = ()

    def resume(self, history: Sequence[LoggedEvent], after: OpId | None) -> CatchUpOps:
        return super().resume(history, None)


class SkipsOne(DeliverySession):
    """Sends a client that resumes what follows the record of its last op, not what follows the op."""

    __slots__ = ()

    def resume(self, history: Sequence[LoggedEvent], after: OpId | None) -> CatchUpOps:
        caught_up = super().resume(history, after)
        if after is None or not caught_up.splittable:
            return caught_up
        return replace(caught_up, ops=tuple(item for item in caught_up.ops if item.op_id.offset != after.offset))


class SendsOn(HeldEvents):
    """Goes on sending the history when a recall arrives."""

    __slots__ = ()

    def hold(self, logged: LoggedEvent) -> bool:
        kept = super().hold(logged)
        self.recall_pending = False
        return kept


class ForgetsHeld(HeldEvents):
    """Drops what arrived while a client read the history."""

    __slots__ = ()

    def next_ops(self, session: DeliverySession, unsent: Sequence[PositionedOp], end_offset: int) -> CatchUpOps | None:
        self._events.clear()
        return super().next_ops(session, unsent, end_offset)
