"""Simulated edge. It uses the Python classes of the real edge to follow partitions and to deliver answers.

It imitates ``log/partition_follower.py`` and ``requests/request_service.py`` in ``services/edge``. If the order of the
steps changes there, change it here too.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from schemas.base import Envelope, envelope
from schemas.errors import NewerVersion
from schemas.requests import Message, Request
from schemas.side_events import Attached
from schemas.stream import StreamEvent
from schemas.topics import RECEIPTS, REQUESTS, REQUESTS_BATCH, STREAMS
from schemas.wire import KIND_HEADER
from services.bus import UnreadableRecord, partition_for
from services.bus.groups.assignor import OwnedPartitions
from services.edge.delivery.held_events import HeldEvents
from services.edge.delivery.session import DeliverySession
from services.edge.errors import ApiError
from services.edge.log.follow_plan import FollowPlan, home_partitions_for, new_local_request_id
from services.edge.log.positions import LoggedEvent, OpId, parse_op_id
from services.edge.log.request_index import RequestIndex
from services.edge.log.unreadable import takes_text_back
from services.processor import Core
from services.simulator.judge.oracle import Oracle
from services.simulator.kafka.broker import PARTITIONS, LogReader, LogRecord, SimulatedBroker, event_of
from services.simulator.kafka.groups import SimulatedGroup
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.kafka.producer import SimulatedProducer
from services.simulator.plan import PlannedRequest
from services.simulator.simulation import MS, SECOND
from services.simulator.tree.screens import ScreenState
from services.simulator.tree.streams import EXPIRY_MARGIN_US, ClientEnd, Stream
from services.stream import Governance

GOVERNANCE = Governance()
DRAIN_US = SECOND

Opened = Callable[[Stream | None], None]
"""A function that is called with the open stream. It is called with None if the edge takes no requests, or does not
find the request."""


@dataclass(frozen=True)
class EdgeParts:
    """The classes and flags from which an edge is built. Tests replace some of them with defective ones."""

    plan: type[FollowPlan] = FollowPlan
    index: type[RequestIndex] = RequestIndex
    session: type[DeliverySession] = DeliverySession
    held: type[HeldEvents] = HeldEvents
    governance: Governance = GOVERNANCE
    accepts_early: bool = False
    takes_text_back: Callable[[UnreadableRecord], bool] = takes_text_back
    sends_the_rest: bool = False


EDGE_PARTS = EdgeParts()


class Edge:
    """One edge process.

    Attributes:
        streams: The open streams, by request id.
        old: Whether the edge runs an old version, which cannot decode ``Recall`` events of the new version.
    """

    def __init__(
        self,
        process: SimulatedProcess,
        broker: SimulatedBroker,
        group: SimulatedGroup,
        parts: EdgeParts,
        oracle: Oracle,
    ) -> None:
        self.process = process
        self.member_id = ""
        self.generation = -1
        self.cores: tuple[Core, ...] = ()
        self.producer = SimulatedProducer(broker, process)
        self.streams: dict[str, list[Stream]] = {}
        self.old = not broker.upgraded
        self._broker = broker
        self._group = group
        self._parts = parts
        self._oracle = oracle
        self._plan = parts.plan()
        self._index = parts.index()
        self._assigned: frozenset[int] = frozenset()
        self._readers: dict[int, LogReader] = {}
        self._following: dict[int, list[Callable[[], None]]] = {}
        self._leaving = False
        self._connections = 0
        seed = f"ids/{process.name}/{process.simulation.random()}"
        self._bits = random.Random(seed).getrandbits  # noqa: S311 - an id is no secret
        process.on_unreachable.append(lambda: group.watch(self))
        process.on_reachable.append(lambda: group.hear(self))

    # Membership. The group assigns only the home partitions.

    @property
    def owned(self) -> OwnedPartitions:
        return OwnedPartitions(self.generation, self._assigned)

    def start(self) -> None:
        self.process.ask(self._group.join, self, self.owned)

    def on_expelled(self) -> None:
        self.generation = -1
        self.on_rebalance()

    def on_rebalance(self) -> None:
        if not self._leaving:
            self.process.ask(self._group.join, self, self.owned)

    def on_assigned(self, generation: int, numbers: list[int]) -> None:
        if self._leaving or generation < self.generation:
            return
        self.generation = generation
        self._assigned = frozenset(numbers)
        self._plan.assign(home_partitions_for(self._assigned, self.process.name, PARTITIONS))
        self.process.note(f"generation {generation}: {numbers}")
        self._update_homes()

    def stop(self, left: Callable[[], None]) -> None:
        """Accept no more requests, end all streams within ``DRAIN_US``, leave the group, and call ``left``."""
        self._leaving = True
        self._plan.retire()
        self._drain(self.process.simulation.now_us + DRAIN_US, left)

    def _drain(self, end_us: int, left: Callable[[], None]) -> None:
        if self.streams and self.process.simulation.now_us < end_us:
            self.process.after(10 * MS, self._drain, end_us, left)
            return
        for stream in self._open():
            stream.end("shutdown")
        self.process.ask(self._group.leave, self)
        self.process.after(20 * MS, left)

    def _open(self) -> list[Stream]:
        return [stream for streams in self.streams.values() for stream in streams]

    # Following partitions

    def _update_homes(self) -> None:
        missing = self._plan.missing()
        if missing:
            self._follow(min(missing), self._update_homes)
            return
        if self._plan.switch_homes():
            self.process.note(f"homes {sorted(self._plan.homes)}")
        for partition in sorted(self._plan.unneeded()):
            self._index.drop_partition(partition)
            self._plan.followed.discard(partition)
            self._readers.pop(partition).close()

    def _follow(self, partition: int, followed: Callable[[], None]) -> None:
        if partition in self._plan.followed:
            followed()
            return
        waiting = self._following.setdefault(partition, [])
        waiting.append(followed)
        if len(waiting) == 1:
            self.process.ask(self._find_end, partition)

    def _find_end(self, partition: int) -> None:
        self.process.fire(self._begin_reading, partition, self._broker.end((STREAMS.name, partition)))

    def _begin_reading(self, partition: int, end: int) -> None:
        self._readers[partition] = LogReader(
            self._broker, self.process, (STREAMS.name, partition), end, self._on_fetched
        )
        self._plan.followed.add(partition)
        for followed in self._following.pop(partition):
            followed()

    def _on_fetched(self, reader: LogReader, records: list[LogRecord]) -> None:
        touched: dict[Stream, None] = {}
        newer = self._broker.newer_recalls
        for record in records:
            event = event_of(record)
            if not isinstance(event, StreamEvent):
                continue
            if newer and self.old and (reader.partition, record.offset) in newer:
                self._on_unreadable(event, record)
                continue
            self._index.note_event(event.request_id.encode(), record.offset)
            for stream in tuple(self.streams.get(event.request_id, ())):
                stream.shown.take(event, record.offset)
                stream.push(tuple.__new__(LoggedEvent, (record.offset, event, record.timestamp_ms)))
                touched[stream] = None
        for stream in touched:
            stream.flush()

    def _on_unreadable(self, event: StreamEvent, record: LogRecord) -> None:
        streams = tuple(self.streams.get(event.request_id, ()))
        for stream in streams:
            stream.shown.take(event, record.offset)
        if self._parts.takes_text_back(_unreadable(event, record)):
            self._index.note_event(event.request_id.encode(), record.offset)
            for stream in streams:
                stream.end("error", withhold=not self._parts.sends_the_rest)

    # Requests

    def ask(self, planned: PlannedRequest, reader: ClientEnd, opened: Opened) -> None:
        """Write a request to the log. Call ``opened`` when the broker has acknowledged it."""
        self.process.after(planned.waited_us, self._accept, planned, reader, opened, self.process.host.now_us)

    def _accept(self, planned: PlannedRequest, reader: ClientEnd, opened: Opened, received_at: int) -> None:
        request_id = new_local_request_id(
            self._plan.homes,
            partition_of=lambda request_id: partition_for(request_id, PARTITIONS),
            now_ms=self.process.now_us // 1_000,
            random_bits=lambda: self._bits(74),
        )
        if request_id is None:
            self._tell(opened, None)
            return
        partition = partition_for(request_id, PARTITIONS)
        self._plan.hold(partition)
        request = Request(
            request_id=request_id,
            tenant="acme",
            at=received_at,
            waited_ms=planned.waited_us / MS,
            source=self.process.name,
            messages=(Message(role="user", content=f"question {planned.number}"),),
            delivery=planned.delivery,
            deadlines=planned.deadlines,
            fallback=planned.fallback,
            egress=planned.egress,
            lane="batch" if planned.batch else "interactive",
        )
        self._broker.labels[request_id] = planned.number
        self._index.follow(request_id.encode(), partition, whole=True)
        stream = self._stream(request, partition, reader, ScreenState(), None, catching_up=False)
        topic = REQUESTS_BATCH if planned.batch else REQUESTS
        self.producer.post(topic, request, acknowledged=lambda: self._tell(opened, stream))
        self._attach(stream)
        if self._parts.accepts_early:
            self._tell(opened, stream)

    def resume(self, request: Request, since: ScreenState, reader: ClientEnd, opened: Opened) -> None:
        """Open a stream of an existing request. The stream starts after the op ``since.op_id``."""
        self.process.ask(self._find_request, request, since, reader, opened)

    def _find_request(self, request: Request, since: ScreenState, reader: ClientEnd, opened: Opened) -> None:
        partition = partition_for(request.request_id, PARTITIONS)
        topic = REQUESTS_BATCH if request.lane == "batch" else REQUESTS
        log = self._broker.log((topic.name, partition))
        found = any(event_of(record) is request for record in log)
        if not found:
            self._oracle.on_not_found(request.request_id)
        self.process.fire(self._hold, request if found else None, partition, since, reader, opened)

    def _hold(
        self, request: Request | None, partition: int, since: ScreenState, reader: ClientEnd, opened: Opened
    ) -> None:
        if request is None or self._leaving:
            self._tell(opened, None)
            return
        self._plan.hold(partition)
        self._follow(partition, lambda: self._reopen(request, partition, since, reader, opened))

    def _reopen(self, request: Request, partition: int, since: ScreenState, reader: ClientEnd, opened: Opened) -> None:
        position = parse_op_id(since.op_id) if since.op_id else None
        stream = self._stream(request, partition, reader, since, position, catching_up=True)
        self._attach(stream)
        self._tell(opened, stream)
        key = request.request_id.encode()
        span = self._index.history_span(key, None if position is None else position.offset)
        if span is not None:
            self.process.ask(self._read_history, stream, position, span.begin, span.end)
            return
        self._index.follow(key, partition, whole=False)
        self.process.ask(self._find_history_end, stream, position)

    def _find_history_end(self, stream: Stream, position: OpId | None) -> None:
        end = self._broker.end((STREAMS.name, stream.session.partition))
        self.process.fire(self.process.ask, self._read_history, stream, position, 0, end)

    def _read_history(self, stream: Stream, position: OpId | None, begin: int, end: int) -> None:
        request_id, partition = stream.request.request_id, (STREAMS.name, stream.session.partition)
        newer = self._broker.newer_recalls if self.old else frozenset()
        history: list[LoggedEvent] = []
        for record in self._broker.log(partition)[begin:end]:
            event = event_of(record)
            if not isinstance(event, StreamEvent) or event.request_id != request_id:
                continue
            if (partition, record.offset) not in newer:
                history.append(tuple.__new__(LoggedEvent, (record.offset, event, record.timestamp_ms)))
            elif self._parts.takes_text_back(_unreadable(event, record)):
                self.process.fire(stream.end, "error")
                return
        self.process.fire(self._send_history, stream, position, history, end)

    def _send_history(self, stream: Stream, position: OpId | None, history: list[LoggedEvent], end: int) -> None:
        self._index.add_history(stream.request.request_id.encode(), [logged.offset for logged in history])
        if stream.reason is not None:
            return
        for logged in history:
            stream.shown.take(logged.event, logged.offset)
        try:
            caught_up = stream.session.resume(history, position)
        except ApiError:
            self._oracle.on_unknown_position(stream)
            stream.end("error")
            return
        stream.catch_up(caught_up, end)

    def _stream(
        self, request: Request, partition: int, reader: ClientEnd, since: ScreenState, after: OpId | None, *,
        catching_up: bool,
    ) -> Stream:  # fmt: skip
        self._connections += 1
        stream = Stream(
            self.process,
            request,
            self._parts.session(request.request_id, partition, self._parts.governance),
            f"{self.process.name}-{self._connections}",
            reader,
            since,
            self._oracle.shown(request.request_id, since.frozen),
            after,
            held=self._parts.held() if catching_up else None,
        )
        stream.on_write = self._oracle.on_written
        stream.on_end = self._on_end
        self.streams.setdefault(request.request_id, []).append(stream)
        self.process.after(request.deadlines.total_ms * MS + EXPIRY_MARGIN_US, stream.end, "error")
        return stream

    def _on_end(self, stream: Stream) -> None:
        request_id = stream.request.request_id
        left = [each for each in self.streams[request_id] if each is not stream]
        if left:
            self.streams[request_id] = left
        else:
            del self.streams[request_id]
        self._plan.release(stream.session.partition)
        self.process.fire(self._update_homes)
        if stream.attached:
            receipt = stream.session.stats.receipt(
                self._about(stream.request), connection=stream.name, reason=stream.reason or "error", received_us=0
            )
            self.producer.post(RECEIPTS, receipt)

    def leave(self, stream: Stream) -> None:
        self.process.after(MS, stream.end, "gone")

    def _attach(self, stream: Stream) -> None:
        stream.attached = True
        event = Attached(
            **self._about(stream.request), connection=stream.name, transport="sse",
            partition=stream.session.partition, resumed_from=None if stream.after is None else str(stream.after),
        )  # fmt: skip
        self.producer.post(RECEIPTS, event)

    def _tell(self, opened: Opened, stream: Stream | None) -> None:
        self.process.simulation.after(MS, opened, stream)

    def _about(self, request: Request) -> Envelope:
        return envelope(request, at=self.process.host.now_us, source=self.process.name)


def _unreadable(event: StreamEvent, record: LogRecord) -> UnreadableRecord:
    kind, key = type(event).__name__, event.request_id.encode()
    error = NewerVersion(f"{kind} of version 2; this reader knows 1")
    headers = ((KIND_HEADER, kind.encode()),)
    at_ms = record.timestamp_ms
    return UnreadableRecord(record.topic, record.partition, record.offset, at_ms, key, b"{}", headers, error)
