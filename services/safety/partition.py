"""The requests of one partition. No I/O.

Until the partition has been read to its end, the events to write and the checks to run are held back.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from schemas.stream import Closed, Started, StreamEvent, Verdict
from services.policy import Policy
from services.safety.decide.check_types import RunOutput
from services.safety.decide.recalls import CheckContext
from services.safety.decide.request import REFUTABLE_CAUSES, RequestCheck

MAX_OPEN: Final = 20_000
"""Maximum number of open requests of a partition. If there are more, one is dropped: the oldest that seems to be over,
such as a request whose attempts failed, or else the oldest. Its text is no longer cleared."""

MAX_CLOSED: Final = 20_000
"""Maximum number of closed requests that are remembered, so that a late event does not start a new check."""

GRACE_US: Final = 60_000_000
"""How long a request without a ``Closed`` is kept after its longest possible deadline, in microseconds."""


class SafetyPartition:
    """The state of one partition.

    Args:
        total_max_us: Longest total deadline that the router grants an interactive request.

    Attributes:
        requests: Open requests by id, oldest first.
        queued: Number of the partition's events in the core's queue.
        catching_up: Whether this process still reads events that were on the log when it was assigned the partition.
        read_us: Append time of the newest event that was read, in microseconds since the epoch.
        dropped: Number of requests that were dropped because too many were open.
    """

    __slots__ = ("_closed", "_held", "_judged", "_total_max_us", "catching_up", "dropped", "lost", "queued", "read_us",
                 "requests")  # fmt: skip

    def __init__(self, total_max_us: int, *, catching_up: bool) -> None:
        self._total_max_us = total_max_us
        self.requests: OrderedDict[str, RequestCheck] = OrderedDict()
        self.queued = 0
        self.catching_up = catching_up
        self.lost = False
        self.read_us = 0
        self.dropped = 0
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._judged: OrderedDict[str, None] = OrderedDict()  # not started yet, and a later verdict is void
        self._held: dict[RequestCheck, list[RunOutput]] = {}

    def check_of(self, event: StreamEvent, policy: Policy, context: CheckContext) -> RequestCheck | None:
        """Return the ``RequestCheck`` of the event's request. Create it if the event starts the checks.

        Return None if the checks are over or have not started.
        """
        request_id = event.request_id
        request = self.requests.get(request_id)
        if request is not None or request_id in self._closed:
            return request
        if isinstance(event, Closed) and event.cause not in REFUTABLE_CAUSES:
            self._remember_closed(request_id)
        if isinstance(event, Verdict) and (request_id in self._judged or not _changes_the_check(event)):
            _remember(self._judged, request_id, MAX_OPEN)  # only a request's first verdict is valid
            return None
        if not isinstance(event, Started | Verdict):
            return None
        longest_us = max(self._total_max_us, policy.classes.longest_total_ms("batch") * 1_000)  # its lane is not known
        expires_us = self.read_us + longest_us + GRACE_US
        request = self.requests[request_id] = RequestCheck(
            request_id, event.tenant, policy, expires_us, context, judged=request_id in self._judged
        )
        self._judged.pop(request_id, None)
        if len(self.requests) > MAX_OPEN:
            requests = self.requests.values()
            dropped = next((each for each in requests if each.seems_over), None) or next(iter(requests))
            del self.requests[dropped.request_id]
            self._held.pop(dropped, None)
            self.dropped += not dropped.seems_over
        return request

    def hold(self, request: RequestCheck, outputs: Sequence[RunOutput]) -> None:
        if outputs:
            self._held.setdefault(request, []).extend(outputs)

    def drop_settled(self, request: RequestCheck) -> None:
        """Forget the request's attempts for which the log has a ``Cleared`` event with ``final=True``.

        Drop the events and checks that were held back for these attempts.
        """
        # If they were kept until the partition has caught up, the answered requests in the part of the log that is read
        # again could be more than `MAX_OPEN`. Then requests that are still open would be dropped.
        request.drop_settled()
        held = self._held.pop(request, ())
        self.hold(request, [output for output in held if not request.settled(output.attempt)])

    def caught_up(self) -> list[tuple[RequestCheck, RunOutput]]:
        """Record that this partition of the log has been read to its end.

        Until then, the events to write and the checks to run were held back. Return those that are still needed, each
        with its request.
        """
        self.catching_up = False
        for request in list(self.requests.values()):
            self.drop_settled(request)
            self.forget_if_over(request)
        held, self._held = self._held, {}
        return [
            (request, output) for request, outputs in held.items() for output in outputs if request.is_needed(output)
        ]

    def forget_if_over(self, request: RequestCheck) -> None:
        if request.over and self.requests.pop(request.request_id, None) is not None:
            self._remember_closed(request.request_id)

    @property
    def expires_us(self) -> int | None:
        """Time at which the oldest request expires, in microseconds since the epoch; None if there is no request."""
        return next(iter(self.requests.values())).expires_us if self.requests else None

    def expire(self, known_us: int) -> int:
        late = [request_id for request_id, request in self.requests.items() if request.expires_us <= known_us]
        for request_id in late:
            del self.requests[request_id]
        return len(late)

    def _remember_closed(self, request_id: str) -> None:
        self._judged.pop(request_id, None)
        _remember(self._closed, request_id, MAX_CLOSED)


def _remember(ids: OrderedDict[str, None], request_id: str, most: int) -> None:
    ids[request_id] = None
    if len(ids) > most:
        ids.popitem(last=False)


def _changes_the_check(verdict: Verdict) -> bool:
    # Most verdicts need not be remembered until the answer starts.
    return verdict.decision == "deny" or (verdict.delivery is not None and verdict.delivery.mode == "gated")
