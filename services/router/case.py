"""What the router knows of one request: the fold of its stream log, its clients, its books."""

from schemas.books import Attached, Detached
from schemas.requests import Deadlines, Lane, Request
from schemas.stream import Chunk, Cutover, Failed, Finished, Recall, Started
from services.router.books import Book
from services.router.clients import Clients
from services.router.policy import RETRY_US
from services.stream import Screen
from services.stream.screen import StreamEvent


class Case:
    """One request, from its first event to its account.

    A case may begin with any event: topics are read side by side, so an answer can be seen before its question. Only a
    ``known`` case (its ``Request`` or its ``Started`` was read) is decided about; the rest waits, and is forgotten.

    Attributes:
        received_us: Zero of its deadlines, microseconds since the epoch.
        opened_us: When the router first read of it.
        known: Whether its deadlines are known.
        lane: As it was asked; None before the ``Request`` was read.
        traceparent: W3C Trace Context of the request.
        books: By attempt.
        stopping: The attempts whose workers were told to stop.
        wake_us: Its earliest alarm; 0 for none.
    """

    __slots__ = (
        "_asked",
        "books",
        "clients",
        "deadlines",
        "known",
        "lane",
        "opened_us",
        "recalls",
        "received_us",
        "request_id",
        "screen",
        "stopping",
        "tenant",
        "traceparent",
        "wake_us",
    )

    def __init__(self, request_id: str, tenant: str, now_us: int) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.screen = Screen(request_id)
        self.received_us = now_us
        self.opened_us = now_us
        self.deadlines = Deadlines()
        self.known = False
        self.lane: Lane | None = None
        self.traceparent: str | None = None
        self.clients = Clients()
        self.books: dict[int, Book] = {1: Book(1)}
        self.recalls: set[str] = set()
        self.stopping: set[int] = set()
        self.wake_us = 0
        self._asked: dict[str, int] = {}

    def on_request(self, request: Request, traceparent: str | None, now_us: int) -> None:
        """The question; a repetition changes nothing. A time of receipt in the future counts as now."""
        if self.lane is None:
            self.lane = request.lane
            self.traceparent = traceparent
            self._know(request.at, request.deadlines, now_us)

    def on_receipt(self, event: Attached | Detached, now_us: int) -> None:
        """A client came or went."""
        if isinstance(event, Attached):
            self.clients.attach(event)
        else:
            self.clients.detach(event, now_us)

    def on_stream(self, event: StreamEvent, now_us: int, window_us: int) -> None:
        """The next event of its stream log. A ``Started`` older than the window makes no case known."""
        if isinstance(event, Recall) and self._is_voice(event):
            self.recalls.add(event.recall_id)
        self.screen.feed(event)
        match event:
            case Chunk():
                book = self.books.get(event.attempt)
                if book is not None and book.started is not None and book.is_of(event.run):
                    book.hear(event)
            case Started():
                self._book(event.attempt).start(event)
                if not self.known and event.received_at + window_us >= now_us:
                    self._know(event.received_at, event.deadlines, now_us)
            case Finished() | Failed():
                book = self._book(event.attempt)
                if book.is_of(event.run):
                    book.end(event)
            case Cutover() if self.screen.attempts == event.attempt:
                book = self._book(event.attempt)
                book.trigger = book.trigger or event.trigger

    def asks(self, what: str, now_us: int) -> bool:
        """Whether to write this decision now: not while it is on its way to the log and back."""
        asked_us = self._asked.get(what)
        if asked_us is not None and now_us - asked_us < RETRY_US:
            return False
        self._asked[what] = now_us
        return True

    def asked_us(self, what: str) -> int | None:
        """When this was last written, if it was."""
        return self._asked.get(what)

    def running(self) -> list[int]:
        """Attempts whose workers may still be at work and were not told to stop."""
        opened = range(1, self.screen.attempts + 1)
        return [n for n in opened if n not in self.stopping and not (n in self.books and self.books[n].ended)]

    def _know(self, received_us: int, deadlines: Deadlines, now_us: int) -> None:
        self.known = True
        self.received_us = min(received_us, now_us)
        self.deadlines = deadlines

    def _book(self, attempt: int) -> Book:
        return self.books.setdefault(attempt, Book(attempt))

    def _is_voice(self, event: Recall) -> bool:
        voice = self.screen.voice
        return voice is not None and voice.attempt == event.attempt and voice.run == event.run
