"""What the router knows of one request: the fold of its stream log, its clients, its prompt, its books. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from schemas.base import AboutRequest, Envelope, envelope
from schemas.books import Attached, Detached
from schemas.requests import Deadlines, Lane, Request
from schemas.stream import Chunk, Closed, Cutover, Failed, Finished, Recall, Started, StreamEvent
from services.router.books import Book
from services.router.clients import Clients
from services.router.policy import RETRY_US
from services.stream import Screen
from services.stream.order import FirstRuns


class Stamp(NamedTuple):
    """What everything carries that is written: the time by our clock, and who writes."""

    now_us: int
    source: str

    def envelope(self, about: AboutRequest) -> Envelope:
        """Fill the fields that every event about this request has."""
        return envelope(about, at=self.now_us, source=self.source)


class Case:
    """One request, from its first event to its account.

    A case may begin with any event: topics are read side by side, so an answer can be seen before its question. Only a
    ``known`` case (its ``Request`` or its ``Started`` was read) is decided about; the rest waits, and is forgotten.

    Attributes:
        received_us: Zero of its deadlines, microseconds since the epoch.
        opened_us: When the first record of it that was read was appended.
        known: Whether its deadlines are known.
        lane: As it was asked; None before the ``Request`` was read.
        request: As it was asked, once it was read; without its messages when the prompt was not ``kept``.
        kept: Whether the prompt is in memory, for another attempt.
        prompt_chars: How long the prompt is.
        traceparent: W3C Trace Context of the request.
        runs: The booked one of each attempt: no other is ever heard.
        books: By attempt.
        cutovers: The effective ones, by the attempt they opened.
        cut_us: When they were appended.
        closed_us: When the effective ``Closed`` was appended.
        turn_us: When the current attempt was opened.
        heard_us: When the current attempt was first heard.
        spoke_us: When the voice last said something new.
        republished: The attempts whose ``Request`` is on a worker's topic.
        stopping: The attempts whose workers were told to stop.
        short: A cutover is due, and the budget has no room for it.
        straight: The self-hosted path was sick when it came: it does not wait for the deadline.
        probe: It was sent there to see whether the path is still sick.
        judged: The breaker was told how the self-hosted path served it.
        wake_us: Its earliest alarm; 0 for none.
    """

    __slots__ = (
        "_asked",
        "books",
        "clients",
        "closed_us",
        "cut_us",
        "cutovers",
        "deadlines",
        "heard_us",
        "judged",
        "kept",
        "known",
        "lane",
        "opened_us",
        "probe",
        "prompt_chars",
        "recalls",
        "received_us",
        "republished",
        "request",
        "request_id",
        "runs",
        "screen",
        "short",
        "spoke_us",
        "stopping",
        "straight",
        "tenant",
        "traceparent",
        "turn_us",
        "wake_us",
    )

    def __init__(self, request_id: str, tenant: str, at_us: int) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.screen = Screen(request_id)
        self.received_us = self.opened_us = self.turn_us = self.spoke_us = at_us
        self.deadlines = Deadlines()
        self.known = False
        self.lane: Lane | None = None
        self.request: Request | None = None
        self.kept = False
        self.prompt_chars = 0
        self.traceparent: str | None = None
        self.clients = Clients()
        self.runs = FirstRuns()
        self.books: dict[int, Book] = {1: Book(1)}
        self.cutovers: dict[int, Cutover] = {}
        self.recalls: set[str] = set()
        self.republished: set[int] = set()
        self.stopping: set[int] = set()
        self.cut_us: dict[int, int] = {}
        self.closed_us = self.heard_us = 0
        self.short = self.straight = self.probe = self.judged = False
        self.wake_us = 0
        self._asked: dict[str, int] = {}

    def on_request(self, request: Request, traceparent: str | None, at_us: int) -> bool:
        """The question, or the router's own republishing of it. True for the first question: ``keep`` it then."""
        if request.attempt > 1:
            self.republished.add(request.attempt)
            self._asked.pop(request_key(request.attempt), None)
        if not self.known:
            self._know(request.at, request.deadlines, at_us)
        if request.attempt > 1 or self.lane is not None:
            return False
        self.lane = request.lane
        self.traceparent = traceparent
        self.prompt_chars = sum(len(message.content) for message in request.messages)
        return True

    def keep(self, request: Request, *, prompt: bool) -> None:
        """Remembers the question, with or without its messages."""
        self.kept = prompt
        self.request = request if prompt else replace(request, messages=())

    def on_receipt(self, event: Attached | Detached, at_us: int) -> None:
        """A client came or went."""
        if isinstance(event, Attached):
            self.clients.attach(event)
        else:
            self.clients.detach(event, at_us)

    def on_stream(self, event: StreamEvent, at_us: int, window_us: int) -> None:
        """The next event of its stream log. A ``Started`` older than the window makes no case known."""
        screen = self.screen
        match event:
            case Chunk():
                self._on_chunk(event, at_us)
            case Started():
                screen.feed(event)
                if self.runs.register(event):
                    self._book(event.attempt).started = event
                if not self.known and event.received_at + window_us >= at_us:
                    self._know(event.received_at, event.deadlines, at_us)
            case Finished() | Failed():
                screen.feed(event)
                self._on_end(event)
            case Cutover():
                self._on_cutover(event, at_us)
            case Closed():
                self._on_closed(event, at_us)
            case Recall():
                voice = screen.voice
                if voice is not None and voice.attempt == event.attempt and voice.run == event.run:
                    self.recalls.add(event.recall_id)
                screen.feed(event)
            case _:
                screen.feed(event)

    def asks(self, what: str, known_us: int, stamp: Stamp) -> bool:
        """Whether to write this decision now: not while it is on its way to the log and back."""
        asked_us = self._asked.get(what)
        if asked_us is not None and known_us - asked_us < RETRY_US:
            return False
        self._asked[what] = stamp.now_us
        return True

    def asked_us(self, what: str) -> int | None:
        """When this was last written, if it was and has not come back."""
        return self._asked.get(what)

    def on_their_way(self) -> Iterable[int]:
        """When each decision was written that has not come back from the log."""
        return self._asked.values()

    def running(self) -> list[int]:
        """Attempts whose workers may still be at work and were not told to stop."""
        opened = range(1, self.screen.attempts + 1)
        return [n for n in opened if n not in self.stopping and not (n in self.books and self.books[n].ended)]

    def _on_chunk(self, event: Chunk, at_us: int) -> None:
        screen = self.screen
        said, heard = screen.last_seq, screen.heard
        screen.feed(event)
        if screen.last_seq != said:
            self.spoke_us = at_us
        if screen.heard and not heard:
            self.heard_us = at_us
        if self.runs.is_heard(event.attempt, event.run):
            self.books[event.attempt].hear(event)

    def _on_cutover(self, event: Cutover, at_us: int) -> None:
        before = self.screen.attempts
        self.screen.feed(event)
        self._asked.pop(cutover_key(event.attempt), None)
        if self.screen.attempts == before:
            return
        self.cutovers[event.attempt] = event
        self.cut_us[event.attempt] = at_us
        self._book(event.attempt).trigger = event.trigger
        self.turn_us = self.spoke_us = at_us

    def _on_end(self, event: Finished | Failed) -> None:
        book = self._book(event.attempt)
        if book.started is None or self.runs.is_heard(event.attempt, event.run):
            book.end(event)  # a failure before any ``Started`` is the attempt's own

    def _on_closed(self, event: Closed, at_us: int) -> None:
        self.screen.feed(event)
        if self.screen.closed is event:
            self.closed_us = at_us
        if self.screen.closed is not None:
            return
        self._asked.pop("closed", None)  # void: decide again at once
        if event.cause == "unreadable" and not self.known:
            self._know(at_us, Deadlines(), at_us)  # nobody will read its deadlines

    def _know(self, received_us: int, deadlines: Deadlines, at_us: int) -> None:
        """Nothing was received after it was put on the log."""
        self.known = True
        self.received_us = min(received_us, at_us)
        self.deadlines = deadlines
        self.turn_us = self.received_us

    def _book(self, attempt: int) -> Book:
        return self.books.setdefault(attempt, Book(attempt))


def request_key(attempt: int) -> str:
    """Under which a republished request's writing is remembered."""
    return f"request-{attempt}"


def cutover_key(attempt: int) -> str:
    """Under which a cutover's writing is remembered."""
    return f"cutover-{attempt}"
