"""One request: its runs, what was said about them on the log, and what safety says next. Pure."""

from collections import deque
from typing import Final

from schemas.stream import Chunk, Cleared, Closed, Failed, Finished, Recall, Started, StreamEvent, Verdict
from services.policy import Policy
from services.safety.looks import Answer, Look, Out
from services.safety.run import NOTHING, RunCheck
from services.safety.verdicts import RunKey, Stamp, prompt_rules
from services.stream.order import FirstRuns

MAY_GO_ON: Final = frozenset(
    {"no_verdict", "no_first_token", "stalled", "attempts_failed", "cannot_begin", "unreadable"}
)
"""Causes of a ``Closed`` that the fold may find void with text still to come: such a one ends neither case nor check.

Each run's own end does, or the case expires. Where another cause is void the answer came to its own end before it.
"""

Attempted = tuple[int, list[Out]]
"""What follows for an attempt."""


class Case:
    """Events of one request in log order: each method returns what follows from them.

    Attributes:
        policy: The version that the request began with; it keeps it.
        expires_us: When it is forgotten if it was never closed, microseconds since the epoch.
        traceparent: Of the request's newest record that had one.
        over: Nothing more will come of it.
        unread: Runs with more to read than one slice.
    """

    __slots__ = ("_closed", "_denied", "_first", "_gated", "_runs", "_said", "_said_seq", "_stamp",
                 "expires_us", "over", "policy", "request_id", "tenant", "traceparent", "unread")  # fmt: skip

    def __init__(self, request_id: str, tenant: str, policy: Policy, expires_us: int, stamp: Stamp) -> None:
        self.request_id = request_id
        self.tenant = tenant
        self.policy = policy
        self.expires_us = expires_us
        self.traceparent: str | None = None
        self.over = False
        self._stamp = stamp
        self._first = FirstRuns()
        self._runs: dict[int, RunCheck] = {}  # attempt -> its check, until that is done
        self._said: set[str] = set()  # recall ids on the log or on their way; bounded as in RunCheck
        self._said_seq: dict[int, tuple[int, bool]] = {}  # attempt -> (cleared seq, final), likewise
        self.unread: deque[RunCheck] = deque()
        self._gated = False
        self._denied = False
        self._closed = False

    def hear(self, event: Chunk) -> list[Out]:
        """Take a chunk. Where it is very long, ``unread`` is true afterwards."""
        run = self._runs.get(event.attempt)
        if run is None or run.key.run != event.run:
            return NOTHING
        outs = run.hear(event)
        if outs or run.unread:
            self._after(run)
        return outs

    def take(self, event: StreamEvent) -> list[Attempted]:
        """Take any event but a chunk."""
        if isinstance(event, Cleared | Recall):
            self.note(event)
        elif isinstance(event, Started):
            self._begin(event)
        elif isinstance(event, Verdict):
            self._on_verdict(event)
        elif isinstance(event, Closed):
            return self._on_closed(event)
        elif isinstance(event, Finished | Failed):
            run = self._runs.get(event.attempt)
            if run is not None and run.key.run == event.run:
                return self._finish([run], event.last_seq)
        return []

    def read(self) -> list[Attempted]:
        """One more slice of what is unread."""
        run = self.unread.popleft()
        outs = run.read()
        self._after(run)
        return [(run.key.attempt, outs)]

    def answer(self, attempt: int, look: Look, answer: Answer) -> list[Out]:
        """Take what a check said."""
        run = self._runs.get(attempt)
        outs = run.answer(look, answer) if run is not None else []
        if run is not None:
            self._after(run)
        return outs

    def checks(self, attempt: int) -> bool:
        """Whether this attempt's text is still being checked."""
        return attempt in self._runs

    def new(self, event: Cleared | Recall) -> bool:
        """Whether this is not on the log yet; from now on it counts as if it were."""
        if isinstance(event, Recall):
            return event.recall_id not in self._said and self.note(event)
        seq, final = self._said_seq.get(event.attempt, (-2, False))
        return not final and (event.final or event.seq > seq) and self.note(event)

    def note(self, event: Cleared | Recall) -> bool:
        """Remember what is said on the log. Returns whether it is about a run that is checked."""
        if not self._first.is_heard(event.attempt, event.run):
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
        if not self._first.register(event) or event.output_check == "off" or self._denied:
            return
        key = RunKey(request_id=self.request_id, tenant=self.tenant, attempt=event.attempt, run=event.run)
        run = RunCheck(key, self.policy, prompt_rules(self.policy, self.tenant), self._stamp)
        run.gated = self._gated or event.delivery.mode == "gated"
        self._runs[event.attempt] = run

    def _on_closed(self, event: Closed) -> list[Attempted]:
        runs = list(self._runs.values())
        if event.cause not in MAY_GO_ON:
            self._closed = True
        elif event.cause == "stalled":  # nobody may ever end this run, and its last words are on the screen
            runs = [run for run in runs if run.key.attempt == event.attempt and run.last_seq <= event.seen_seq]
        else:
            return []
        return self._finish(runs, None)

    def _finish(self, runs: list[RunCheck], last_seq: int | None) -> list[Attempted]:
        outs = [(run.key.attempt, run.finish(last_seq)) for run in runs]
        for run in runs:
            self._after(run)
        self._tidy()
        return outs

    def _after(self, run: RunCheck) -> None:
        if run.unread and run not in self.unread:
            self.unread.append(run)
        if run.done:
            self._tidy()

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
