"""Simulated clients. Each sends one request, and may disconnect and resume at any edge."""

import random
from collections.abc import Callable, Sequence

from schemas.requests import Request
from schemas.side_events import DetachReason
from services.simulator.judge.oracle import Oracle
from services.simulator.plan import PlannedRequest
from services.simulator.simulation import MS, SECOND, Simulation
from services.simulator.tree.edge import Edge
from services.simulator.tree.screens import ScreenState, read_events
from services.simulator.tree.streams import ClientEnd, Stream

RETURNS_WITHIN_US = 2 * SECOND
"""A client that would be disconnected for longer than this does not come back at all."""

PATIENCE_US = 2 * SECOND
"""How long a client waits for the response to a request or a resume before it tries another edge."""

SLOW_READ_US = 350 * MS
"""How long a slow client takes to read one write."""


class Client:
    """A client that sends one request and reads its answer.

    Attributes:
        request: None until the client knows the id of its request.
        gone: Whether the client has disconnected and will not come back.
    """

    def __init__(self, planned: PlannedRequest) -> None:
        self.planned = planned
        self.request: Request | None = None
        self.seen = [ScreenState()]
        self.closed = False
        self.gone = False
        self.stream: Stream | None = None
        self.edge: Edge | None = None
        self.read_us = 2 * MS
        self.tries = 0

    @property
    def done(self) -> bool:
        return self.closed or self.gone


class Clients:
    def __init__(self, seed: int, simulation: Simulation, oracle: Oracle, edges: Callable[[], Sequence[Edge]]) -> None:
        self.all: list[Client] = []
        self._simulation = simulation
        self._oracle = oracle
        self._edges = edges
        self._dice = random.Random(f"clients/{seed}")  # noqa: S311 - a schedule is no secret

    def ask(self, client: Client) -> None:
        """Send the client's request to a random edge. Repeat this until an edge accepts the request."""
        if client.request is not None or client.gone:
            return
        edge = self._choose()
        client.tries += 1
        tries = client.tries
        self._simulation.after(PATIENCE_US, self._ask_again, client, tries)
        if edge is not None:
            client.edge = edge
            edge.ask(client.planned, self._reader(client, tries), lambda stream: self._accepted(client, tries, stream))

    def _ask_again(self, client: Client, tries: int) -> None:
        if client.request is None and client.tries == tries:
            self.ask(client)

    def _accepted(self, client: Client, tries: int, stream: Stream | None) -> None:
        if stream is None:
            if client.tries == tries:
                self._simulation.after(200 * MS, self._ask_again, client, tries)
        elif client.tries != tries or client.gone:
            stream.process.after(MS, stream.end, "gone")
        else:
            self._adopt(client, stream)

    def _adopt(self, client: Client, stream: Stream) -> None:
        client.request = stream.request
        if client.stream is not None:
            return
        if stream.process.alive and stream.reason is None:
            client.stream = stream
        else:  # the edge was killed, or it ended the stream, while its response was in flight
            self._simulation.after(100 * MS, self._come_back_again, client, client.tries)

    def _reader(self, client: Client, tries: int) -> ClientEnd:
        return ClientEnd(
            lambda stream, data: self._take(client, tries, stream, data),
            lambda stream, reason: self._ended(client, tries, stream, reason),
            client.read_us,
        )

    def _take(self, client: Client, tries: int, stream: Stream, data: bytes) -> None:
        if client.done or client.tries != tries:
            return
        self._adopt(client, stream)
        delivered = read_events(data, client.seen[-1])
        client.seen.extend(delivered.states)
        client.closed = client.closed or delivered.closed

    def _ended(self, client: Client, tries: int, _stream: Stream, reason: DetachReason) -> None:
        if client.tries != tries:
            return
        client.stream = None
        if not client.done and reason != "gone":
            self._simulation.after(self._simulation.between(50 * MS, 300 * MS), self._come_back, client)

    def on_edge_died(self, edge: Edge) -> None:
        for client in self.all:
            stream = client.stream
            if stream is not None and stream.process is edge.process:
                client.stream = None
                client.tries += 1
                if not client.done:
                    self._simulation.after(self._simulation.between(20 * MS, 200 * MS), self._come_back, client)
            elif client.edge is edge and client.request is None and client.tries:
                self._simulation.after(
                    self._simulation.between(20 * MS, 200 * MS), self._ask_again, client, client.tries
                )

    def leave(self, client: Client, for_us: int) -> None:
        """Disconnect a client, and connect it again after ``for_us`` microseconds.

        If ``for_us`` is more than ``RETURNS_WITHIN_US``, do not connect the client again.
        """
        stream = client.stream
        if client.done or stream is None or stream.reason is not None:
            return
        client.stream = None
        client.tries += 1
        if client.edge is not None:
            client.edge.leave(stream)
        if for_us <= RETURNS_WITHIN_US:
            self._simulation.after(for_us, self._come_back, client)
        else:
            client.gone = True

    def roam(self, client: Client, for_us: int, read_us: int) -> None:
        """Disconnect a client, and connect it again after ``for_us`` microseconds.

        If ``read_us`` is not 0, each later read of the client takes this long.
        """
        if read_us and client.stream is not None:
            client.read_us = read_us
        self.leave(client, for_us)

    def slow_down(self, client: Client, for_us: int) -> None:
        client.read_us = SLOW_READ_US
        if client.stream is not None:
            client.stream.reader.read_us = SLOW_READ_US
        self._simulation.after(for_us, self._speed_up, client)

    def _speed_up(self, client: Client) -> None:
        client.read_us = 2 * MS
        if client.stream is not None:
            client.stream.reader.read_us = 2 * MS

    def _come_back(self, client: Client) -> None:
        if client.done or client.stream is not None or client.request is None:
            return
        # Resume after the last op, at the beginning, or after a random op.
        luck = self._dice.random()
        place = len(client.seen) - 1 if luck < 0.5 else 0 if luck < 0.7 else self._dice.randrange(len(client.seen))
        edge = self._choose()
        client.tries += 1
        tries = client.tries
        self._simulation.after(PATIENCE_US, self._come_back_again, client, tries)
        if edge is None:
            return
        del client.seen[place + 1 :]
        client.edge = edge
        opened = lambda stream: self._reopened(client, tries, stream)  # noqa: E731 - it fits on one line
        edge.process.after(MS, edge.resume, client.request, client.seen[-1], self._reader(client, tries), opened)

    def _come_back_again(self, client: Client, tries: int) -> None:
        if client.stream is None and client.tries == tries:
            self._come_back(client)

    def _reopened(self, client: Client, tries: int, stream: Stream | None) -> None:
        if stream is None:
            if client.tries == tries:
                self._simulation.after(200 * MS, self._come_back_again, client, tries)
        elif client.tries != tries or client.done or client.stream not in {None, stream}:
            stream.process.after(MS, stream.end, "gone")
        else:
            self._adopt(client, stream)

    def _choose(self) -> Edge | None:
        edges = self._edges()
        return edges[self._dice.randrange(len(edges))] if edges else None
