"""Deliberate defects of the edge, in what it reads from the log and in what it sends to clients."""

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
    """Defect: the edge stops reading partitions that are not its home partitions, although open streams need them."""

    def unneeded(self) -> frozenset[int]:
        return frozenset(self.followed - self.homes - self._wanted)


class AsksTooSoon(FollowPlan):
    """Defect: the edge puts new requests into a home partition before it reads that partition."""

    def assign(self, wanted: frozenset[int]) -> None:
        super().assign(wanted)
        if not self._retired:
            self.homes = wanted


class RemembersGaps(RequestIndex):
    """Defect: the index keeps the requests of a partition that the edge stops reading.

    If the edge reads the partition again, the index does not know the events in between.
    """

    def drop_partition(self, partition: int) -> None:
        """Do nothing, although the partition's requests must be forgotten."""


class SendsRecalled(DeliverySession):
    """Defect: a client gets a history in which one op shows text and a later op takes this text back."""

    __slots__ = ()

    def _caught_up(self, already_sent: tuple[Op, ...], rest: Sequence[PositionedOp]) -> CatchUpOps:
        return CatchUpOps(already_sent, tuple(rest), splittable=True)


class SplitsShortened(DeliverySession):
    """Defect: the ops of a shortened history (one without the recalled text) may be sent in several messages.

    All these ops have the same id. Therefore, a client that resumes after the first message misses the other messages.
    """

    __slots__ = ()

    def _caught_up(self, already_sent: tuple[Op, ...], rest: Sequence[PositionedOp]) -> CatchUpOps:
        caught_up = super()._caught_up(already_sent, rest)
        same = caught_up.ops == tuple(rest)
        return replace(caught_up, splittable=True) if same else caught_up


class StartsOver(DeliverySession):
    """Defect: when a client resumes after an op, the edge sends everything from the beginning."""

    __slots__ = ()

    def resume(self, history: Sequence[LoggedEvent], after: OpId | None) -> CatchUpOps:
        return super().resume(history, None)


class SkipsOne(DeliverySession):
    """Defect: a client that resumes after an op is not sent the later ops of the same record."""

    __slots__ = ()

    def resume(self, history: Sequence[LoggedEvent], after: OpId | None) -> CatchUpOps:
        caught_up = super().resume(history, after)
        if after is None or not caught_up.splittable:
            return caught_up
        return replace(caught_up, ops=tuple(item for item in caught_up.ops if item.op_id.offset != after.offset))


class SendsOn(HeldEvents):
    """Defect: the edge applies a recall only after it has sent all ops of earlier events."""

    __slots__ = ()

    def hold(self, logged: LoggedEvent) -> bool:
        kept = super().hold(logged)
        self.recall_pending = False
        return kept


class ForgetsHeld(HeldEvents):
    """Defect: events that arrive while a client reads the history are dropped."""

    __slots__ = ()

    def next_ops(self, session: DeliverySession, unsent: Sequence[PositionedOp], end_offset: int) -> CatchUpOps | None:
        self._events.clear()
        return super().next_ops(session, unsent, end_offset)
