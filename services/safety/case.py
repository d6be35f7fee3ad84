"""One request: its runs, what was said about them on the log, and what safety says next."""

from collections import deque
from collections.abc import Iterator

from schemas.stream import Chunk, Cleared, Closed, Failed, Finished, Recall, Started, Verdict
from services.policy import Policy
from services.safety.looks import Answer, Look, Out, Say
from services.safety.run import RunCheck
from services.safety.verdicts import RunKey, prompt_rules

StreamEvent = Verdict | Started | Chunk | Finished | Failed | Cleared | Recall | Closed


class Case:
    """Events of one request in log order. ``read`` and ``answer`` return what follows from them.

    Attributes:
        policy: The version that the request began with; it keeps it.
        expires_us: When it is forgotten if it was never closed, microseconds since the epoch.
        traceparent: Of the request's newest record that had one.
        over: Nothing more will come of it.
    """

    __slots__ = ("_closed", "_denied", "_due", "_gated", "_heard", "_numbers", "_runs", "_said", "_said_seq",
                 "expires_us", "over", "policy", "request_id", "tenant", "traceparent")  # fmt: skip

    def __init__(self, request_id: str, tenant: str, policy: Policy, expires_us: int, numbers: Iterator[int]) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.policy = policy
        self.expires_us = expires_us
        self.traceparent: str | None = None
        self.over = False
        self._numbers = numbers
        self._heard: dict[int, str] = {}  # attempt -> its first run; at most 100 attempts
        self._runs: dict[int, RunCheck] = {}  # attempt -> its check, until that is done
        self._said: set[str] = set()  # recall ids on the log or on their way; bounded as in RunCheck
        self._said_seq: dict[int, tuple[int, bool]] = {}  # attempt -> (cleared seq, final), likewise
        self._due: deque[RunCheck] = deque()  # with something to read; empty between two events
        self._gated = False
        self._denied = False
        self._closed = False

    def take(self, event: StreamEvent) -> None:
        """Fold an event of the log."""
        if isinstance(event, Chunk | Finished | Failed):
            run = self._runs.get(event.attempt)
            if run is not None and run.key.run == event.run:
                if isinstance(event, Chunk):
                    run.hear(event)
                else:
                    run.finish(event.last_seq)
                self._due.append(run)
        elif isinstance(event, Cleared | Recall):
            self.note(event)
        elif isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Verdict):
            self._on_verdict(event)
        else:
            self._closed = True
            for run in self._runs.values():
                run.finish(None)
                self._due.append(run)
            self._tidy()

    def read(self) -> tuple[list[tuple[int, Out]], bool]:
        """One slice of reading: what follows, each with its attempt, and whether there is more to read."""
        outs: list[tuple[int, Out]] = []
        while self._due:
            run = self._due[0]
            outs.extend((run.key.attempt, out) for out in run.read())
            if run.unread:
                return outs, True
            self._due.popleft()
            if run.done:
                self._tidy()
        return outs, False

    def answer(self, attempt: int, look: Look, answer: Answer) -> list[Out]:
        """Take what a check said."""
        run = self._runs.get(attempt)
        outs = run.answer(look, answer) if run is not None else []
        if run is not None and run.done:
            self._tidy()
        return outs

    def checks(self, attempt: int) -> bool:
        """Whether this attempt's text is still being checked."""
        return attempt in self._runs

    def new(self, say: Say) -> bool:
        """Whether this is not on the log yet; from now on it counts as if it were."""
        event = say.event
        if isinstance(event, Recall):
            return event.recall_id not in self._said and self.note(event)
        seq, final = self._said_seq.get(event.attempt, (-2, False))
        return not final and (event.final or event.seq > seq) and self.note(event)

    def note(self, event: Cleared | Recall) -> bool:
        """Remember what is said on the log. Returns whether it is about a run that is checked."""
        if self._heard.get(event.attempt) != event.run:
            return False
        if isinstance(event, Recall):
            self._said.add(event.recall_id)
        else:
            seq, final = self._said_seq.get(event.attempt, (-2, False))
            self._said_seq[event.attempt] = (max(seq, event.seq), final or event.final)
        return True

    def settled(self, attempt: int) -> bool:
        """Whether the log says that this attempt's check came to its end."""
        return self._said_seq.get(attempt, (-2, False))[1]

    def drop_settled(self) -> None:
        """Forget checks whose end is on the log already: nothing they could say is new."""
        for attempt in [attempt for attempt in self._runs if self.settled(attempt)]:
            del self._runs[attempt]
        self._tidy()

    def _begin(self, event: Started) -> None:
        if event.attempt in self._heard:
            return  # within an attempt the first run in the log is the one that is heard
        self._heard[event.attempt] = event.run
        if event.output_check == "off" or self._denied:
            return
        key = RunKey(request_id=self.request_id, tenant=self.tenant, attempt=event.attempt, run=event.run)
        run = RunCheck(key, self.policy, prompt_rules(self.policy, self.tenant), self._numbers)
        run.gated = self._gated or event.delivery.mode == "gated"
        self._runs[event.attempt] = run

    def _on_verdict(self, event: Verdict) -> None:
        if event.decision == "deny":  # nothing of it is ever shown
            self._denied = True
            self._runs.clear()
        elif event.delivery is not None and event.delivery.mode == "gated":
            self._gated = True
            for run in self._runs.values():
                run.gated = True

    def _tidy(self) -> None:
        for attempt in [attempt for attempt, run in self._runs.items() if run.done]:
            del self._runs[attempt]
        self.over = self._closed and not self._runs
