"""An edge with its clients: asks, reads the stream log, shows what the fold says, comes and goes."""

from schemas.requests import Message, Request
from schemas.side_events import Attached, Detached
from schemas.stream import StreamEvent
from schemas.topics import RECEIPTS, REQUESTS, STREAMS
from services.bus import Received
from services.simulator.kafka.broker import PARTITIONS, Broker, LogReader
from services.simulator.kafka.hosts import Process
from services.simulator.kafka.producer import SimulatedProducer
from services.simulator.plan import PlannedRequest
from services.simulator.simulation import MS, SECOND
from services.stream import Close, Screen, Show
from services.stream.ops import apply

RETURNS_WITHIN_US = 2 * SECOND
"""A client that is gone for longer does not come back."""


class Client:
    """One request's client.

    Attributes:
        visible: The text that it shows.
        attached: Whether it is connected.
        showed: Whether it ever showed text of an answer.
    """

    def __init__(self, request: Request, screen: Screen) -> None:
        self.request = request
        self.screen = screen
        self.visible = ""
        self.attached = False
        self.showed = False


class Edge:
    """All clients. ``on_fed`` is called after each event that a client has folded."""

    def __init__(self, process: Process, broker: Broker, screen: type[Screen], on_fed) -> None:
        self.clients: dict[str, Client] = {}
        self._process = process
        self._producer = SimulatedProducer(broker, process)
        self._screen = screen
        self._on_fed = on_fed
        for number in range(PARTITIONS):
            LogReader(broker, process, (STREAMS.name, number), 0, self._on_fetched)

    def ask(self, request_id: str, planned: PlannedRequest) -> None:
        """Receive a request, and write it once it has waited as planned."""
        self._process.after(planned.waited_us, self._write, request_id, planned, self._process.host.now_us)

    def _write(self, request_id: str, planned: PlannedRequest, received_at: int) -> None:
        request = Request(
            request_id=request_id,
            tenant="acme",
            at=received_at,
            waited_ms=planned.waited_us / MS,
            source=self._process.name,
            messages=(Message(role="user", content=f"question {planned.number}"),),
            delivery=planned.delivery,
            deadlines=planned.deadlines,
            fallback=planned.fallback,
            egress=planned.egress,
        )
        client = self.clients[request_id] = Client(request, self._screen(request_id))
        self._producer.post(REQUESTS, request)
        self.attach(client)

    def attach(self, client: Client) -> None:
        if client.screen.closed is None:
            client.attached = True
            event = Attached(**self._about(client), connection="c1", transport="sse", partition=0)
            self._producer.post(RECEIPTS, event)

    def leave(self, request_id: str, for_us: int) -> None:
        """Let a client leave, and come back if it is soon."""
        client = self.clients[request_id]
        if client.screen.closed is not None or not client.attached:
            return
        self._detach(client, "gone")
        if for_us <= RETURNS_WITHIN_US:
            self._process.after(for_us, self.attach, client)

    def _detach(self, client: Client, reason: str) -> None:
        client.attached = False
        event = Detached(**self._about(client), connection="c1", reason=reason, ops=0, ops_hash="0" * 64)
        self._producer.post(RECEIPTS, event)

    def _on_fetched(self, reader: LogReader, records: list[Received]) -> None:
        for record in records:
            event = record.event
            client = self.clients[event.request_id]
            ops = client.screen.feed(event, record.timestamp_ms) if isinstance(event, StreamEvent) else ()
            for op in ops:
                client.visible = apply(client.visible, op)
                client.showed = client.showed or isinstance(op, Show)
            self._on_fed(event, ops, client)
            if ops and isinstance(ops[-1], Close) and client.attached:
                self._detach(client, "complete")

    def _about(self, client: Client) -> dict:
        request = client.request
        return {
            "request_id": request.request_id,
            "tenant": request.tenant,
            "at": self._process.host.now_us,
            "source": self._process.name,
        }
