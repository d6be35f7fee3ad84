"""Functions that make the events of requests, and a simulated log which routers read and write."""

from typing import Any

from schemas.base import AnyEvent, Event
from schemas.ids import uuid7
from schemas.registry import writes
from schemas.requests import Deadlines, Delivery, Message, Request
from schemas.side_events import Account, Attached, Cancel, Detached
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Usage, Verdict
from schemas.topics import DEAD, REQUESTS_VERTEX, Topic
from services.bus import Received, UnreadableRecord, partition_for
from services.router.config import RouterConfig
from services.router.core import RouterCore
from services.router.partition import Writes
from tests.support.bus import topic_of

MAY_WRITE = writes("router")

T0 = 1_700_000_000_000_000
MS = 1_000
PARTITIONS = 2
FAR_US = 2**62


def request_id(number: int = 0) -> str:
    return uuid7(T0 // 1_000 + number, number * 7_919)


RID = request_id()


def about(rid: str, at_ms: float) -> dict[str, Any]:
    return {"request_id": rid, "tenant": "acme", "at": T0 + int(at_ms * MS), "source": "test"}


def request(rid: str = RID, at_ms: float = 0, **fields: Any) -> Request:
    fields.setdefault("messages", (Message(role="user", content="hello"),))
    return Request(**about(rid, at_ms), **fields)


def started(rid: str = RID, at_ms: float = 5, attempt: int = 1, run: str = "r1", **fields: Any) -> Started:
    values = {
        "model": "m",
        "engine": "e",
        "queue_ms": 1.0,
        "received_at": T0,
        "delivery": Delivery(),
        "deadlines": Deadlines(),
        "input_gate": "off",
        "output_check": "off",
    }
    return Started(**about(rid, at_ms), attempt=attempt, run=run, **(values | fields))


def chunk(seq: int, rid: str = RID, at_ms: float = 50, attempt: int = 1, run: str = "r1") -> Chunk:
    return Chunk(**about(rid, at_ms), attempt=attempt, run=run, seq=seq, start=seq * 3, text="abc", tokens=1)


def finished(last_seq: int, rid: str = RID, at_ms: float = 90, attempt: int = 1, run: str = "r1") -> Finished:
    usage = Usage(prompt_tokens=3, completion_tokens=last_seq + 1)
    return Finished(**about(rid, at_ms), attempt=attempt, run=run, last_seq=last_seq, finish_reason="stop", usage=usage)


def failed(rid: str = RID, at_ms: float = 60, attempt: int = 1, run: str = "r1", **fields: Any) -> Failed:
    values = {"error_class": "unavailable", "message": "refused", "retryable": True}
    return Failed(**about(rid, at_ms), attempt=attempt, run=run, **(values | fields))


def verdict(decision: str = "allow", rid: str = RID, at_ms: float = 20, **fields: Any) -> Verdict:
    return Verdict(**about(rid, at_ms), decision=decision, policy_version="p1", **fields)  # type: ignore[arg-type]


def cleared(
    seq: int, rid: str = RID, at_ms: float = 95, final: bool = True, attempt: int = 1, run: str = "r1"
) -> Cleared:
    return Cleared(**about(rid, at_ms), attempt=attempt, run=run, seq=seq, final=final, policy_version="p1")


def recall(rid: str = RID, at_ms: float = 70, action: str = "stop", run: str = "r1", attempt: int = 1) -> Recall:
    return Recall(
        **about(rid, at_ms),
        attempt=attempt,
        run=run,
        recall_id=f"{attempt}/{action}",
        start=0,
        end=3,
        action=action,  # type: ignore[arg-type]
        replacement="[gone]",
        rule="ssn",
        category="pii",
        policy_version="p1",
    )


def attached(connection: str = "c1", rid: str = RID, at_ms: float = 1) -> Attached:
    return Attached(**about(rid, at_ms), connection=connection, transport="sse", partition=0)


def detached(connection: str = "c1", reason: str = "gone", rid: str = RID, at_ms: float = 60) -> Detached:
    return Detached(
        **about(rid, at_ms),
        connection=connection,
        reason=reason,
        ops=0,
        ops_hash="0" * 64,  # type: ignore[arg-type]
    )


def closed(outcome: str = "completed", rid: str = RID, at_ms: float = 100) -> Closed:
    return Closed(**about(rid, at_ms), outcome=outcome)  # type: ignore[arg-type]


def next_alarm_us(router: RouterCore, partitions: int = PARTITIONS) -> int | None:
    """Return the earliest time at which ``tick`` must be called for any partition; None if no call is needed."""
    alarms = [router.alarm_us(number, FAR_US) for number in range(partitions)]
    return min((at for at in alarms if at is not None), default=None)


def tick(router: RouterCore, now_us: int, partitions: int = PARTITIONS) -> Writes:
    """Call the router's ``tick`` for every partition, as if the log was read up to ``now_us``. Return the writes."""
    return [write for number in range(partitions) for write in router.tick(number, now_us, now_us)]


class World:
    """A log and its routers. Every router reads all records in order, also those that the routers write."""

    def __init__(self, config: RouterConfig | None = None, routers: int = 1) -> None:
        self.config = config or RouterConfig()
        self.log: list[tuple[Topic, AnyEvent]] = []
        self.now_us = T0
        self.broker_ahead_us = 0  # how far the broker's clock is ahead of the routers' clock
        self.late_us = 0  # time from the append of a record until the routers read it
        self.routers: list[RouterCore] = []
        for _ in range(routers):
            self.join()

    def join(self) -> RouterCore:
        """Add and return a router. It reads the whole log before it makes decisions."""
        router = RouterCore(self.config, f"router/{len(self.routers)}", PARTITIONS)
        for number in range(PARTITIONS):
            router.gained(number)
        for offset, (topic, event) in enumerate(self.log):
            assert self._show(router, topic, event, offset) == [] or topic is DEAD
        self.routers.append(router)
        for number in range(PARTITIONS):
            self.write(router.caught_up(number, self.now_us, self.now_us))
        return router

    def restart(self, index: int = 0) -> None:
        """Replace a router by a new one, as after ``kill -9``."""
        del self.routers[index]
        self.join()

    def put(self, *events: AnyEvent, topic: Topic | None = None) -> "World":
        """Append events, each at the time in its field ``at``. Routers read each event and write their decisions."""
        for event in events:
            at = getattr(event, "at", 0)
            self.now_us = max(self.now_us, at)
            self.tick()
            self.append(topic or topic_of(event), event)
        return self

    def append(self, topic: Topic, event: AnyEvent) -> None:
        """Append one event. Every router reads it and writes its decisions."""
        self.log.append((topic, event))
        for router in tuple(self.routers):
            self.write(self._show(router, topic, event, len(self.log) - 1))

    def write(self, due: Writes) -> None:
        for write in due:
            assert type(write.event) in MAY_WRITE[write.topic.name]
            self.append(write.topic, write.event)

    def until(self, at_ms: float) -> "World":
        """Let time pass until ``at_ms`` milliseconds after ``T0``. The routers' timers fire when they are due."""
        end_us = T0 + int(at_ms * MS)
        while (alarm_us := self._next_alarm_us()) is not None and alarm_us <= end_us:
            self.now_us = max(self.now_us, alarm_us)
            self.tick()
        self.now_us = end_us
        return self

    def _next_alarm_us(self) -> int | None:
        return min((at for router in self.routers if (at := next_alarm_us(router)) is not None), default=None)

    def tick(self) -> None:
        for router in self.routers:
            self.write(tick(router, self.now_us))

    def written(self, kind: type[Any], rid: str | None = None) -> list[Any]:
        """Return the events of one kind on the log. With ``rid``, return only those of this request."""
        return [e for _, e in self.log if isinstance(e, kind) and (rid is None or e.request_id == rid)]

    def endings(self, rid: str = RID) -> list[str]:
        """Return the outcomes of a request's ``Closed`` events, in log order."""
        return [event.outcome for event in self.written(Closed, rid)]

    def cancels(self, rid: str = RID) -> list[tuple[str, int | None]]:
        return [(event.reason, event.attempt) for event in self.written(Cancel, rid)]

    def cutovers(self, rid: str = RID) -> list[tuple[int, str, str, str]]:
        return [(event.attempt, event.trigger, event.how, event.target) for event in self.written(Cutover, rid)]

    def cloud_requests(self, rid: str | None = None) -> list[Request]:
        """Return the requests on the Vertex topic. With ``rid``, return only those with this id."""
        return [
            event
            for topic, event in self.log
            if topic is REQUESTS_VERTEX and isinstance(event, Request) and rid in {None, event.request_id}
        ]

    def account(self, rid: str = RID) -> Account:
        (account,) = self.written(Account, rid)
        return account

    def unread(self, unread: UnreadableRecord) -> None:
        for router in tuple(self.routers):
            self.write(router.read(unread, self.now_us, self.now_us))

    def _show(self, router: RouterCore, topic: Topic, event: AnyEvent, offset: int) -> Writes:
        if topic is DEAD:
            return router.on_dead_letter(event, self.now_us // 1_000, self.now_us)  # type: ignore[arg-type]
        partition = partition_for(event.request_id, PARTITIONS) if isinstance(event, Event) else 0
        record = Received(topic.name, partition, offset, (self.now_us + self.broker_ahead_us) // 1_000, event, None)
        return router.read(record, self.now_us, self.now_us + self.late_us)
