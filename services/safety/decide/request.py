"""The checks of one request, which has one or more runs. No I/O."""

from collections import deque
from typing import Final, final

from schemas.stream import Chunk, Cleared, Closed, Failed, Finished, Recall, Started, StreamEvent, Verdict
from services.policy import Admission, AdmissionRequest, Policy, RulingError
from services.safety.decide.check_types import CheckOutcome, CheckRequest, RunOutput
from services.safety.decide.recalls import CheckContext, RunKey, immediate_rules
from services.safety.decide.run import NOTHING, RunCheck
from services.stream.order import FirstRuns

REFUTABLE_CAUSES: Final = frozenset(
    {"no_verdict", "no_first_token", "stalled", "attempts_failed", "cannot_begin", "unreadable"}
)
"""Causes of a ``Closed`` that does not end the request's checks, because it may be void while the answer goes on.

The check of a run then ends with the run, or when the request expires. There are two exceptions. ``stalled`` ends the
check of the stalled run with its text so far, if no chunk after ``seen_seq`` has come, because that run perhaps never
ends. ``attempts_failed`` ends the checks of failed runs before their first missing chunk. A ``Closed`` with a cause
that is not in this set can be void only after the answer has ended.
"""

_ADMISSION_RAIL: Final = "admission"
"""Without this rail, ``admission.rego`` has no effect."""


@final
class RequestCheck:
    """Checks the answer to one request. The events of the request must be passed in log order.

    Attributes:
        policy: The policy version with which the request began.
        expires_us: Time at which the request is forgotten if it was never closed, in microseconds since the epoch.
        over: True if no recall, clearance or check will follow for this request.
        unread: Runs with text that the method ``read`` has not processed yet.
    """

    __slots__ = ("_cleared", "_closed", "_context", "_denied", "_failed", "_first_runs", "_gated", "_judged",
                 "_perhaps_closed", "_recall_ids", "_runs", "expires_us", "over", "policy", "request_id", "tenant",
                 "traceparent", "unread")  # fmt: skip

    def __init__(
        self, request_id: str, tenant: str, policy: Policy, expires_us: int, context: CheckContext, *,
        judged: bool = False,
    ) -> None:  # fmt: skip
        self.request_id = request_id
        self.tenant = tenant
        self.policy = policy
        self.expires_us = expires_us
        self.traceparent: str | None = None
        self.over = False
        self._context = context
        self._first_runs = FirstRuns()
        self._runs: dict[int, RunCheck] = {}  # by attempt, until the check is done
        self._recall_ids: set[str] = set()  # ids of recalls on the log or being written; bounded as in RecallBuilder
        self._cleared: dict[int, tuple[int, bool]] = {}  # by attempt: (cleared seq, final)
        self.unread: deque[RunCheck] = deque()
        self._failed: set[int] = set()  # attempts whose run has failed
        self._judged = judged  # whether a verdict was read: a later one is void, as in the fold
        self._gated = False
        self._denied = False
        self._closed = False
        self._perhaps_closed = False

    @property
    def seems_over(self) -> bool:
        """Whether a ``Closed`` of the request was read, and no run is left to check.

        The request then needs no further check, unless that ``Closed`` is void.
        """
        return self._perhaps_closed and not self._runs

    def add(self, event: Chunk) -> list[RunOutput]:
        """Add a chunk to its run, and check at most ``SLICE_CHARS`` characters of the run's unchecked text.

        If unchecked text is left, add the run to ``unread``.
        """
        run = self._runs.get(event.attempt)
        if run is None or run.key.run != event.run:
            return NOTHING
        outputs = run.add(event)
        if outputs or run.unread:
            self._after(run)
        return outputs

    def take(self, event: StreamEvent) -> list[RunOutput]:
        match event:
            case Cleared() | Recall():
                self.note(event)
            case Started():
                self._begin(event)
            case Verdict():
                self._on_verdict(event)
            case Closed():
                return self._on_closed(event)
            case Finished() | Failed():
                run = self._runs.get(event.attempt)
                if run is not None and run.key.run == event.run:
                    if isinstance(event, Failed):
                        self._failed.add(event.attempt)
                    return self._finish([run], event.last_seq)
            case _:
                pass
        return []

    def read(self) -> list[RunOutput]:
        """Check at most ``SLICE_CHARS`` characters of the first run in ``unread``.

        Return the events to write, and the checks of tiers 1 and 2 to run.
        """
        run = self.unread.popleft()
        outputs = run.read()
        self._after(run)
        return outputs

    def take_outcome(self, check: CheckRequest, outcome: CheckOutcome) -> list[RunOutput]:
        run = self._runs.get(check.attempt)
        if run is None:
            return []
        outputs = run.take_outcome(check, outcome)
        self._after(run)
        return outputs

    def is_needed(self, output: RunOutput) -> bool:
        """Return whether ``output``, which was held back, is still needed.

        If it is an event that is still needed, count the event as written from now on.
        """
        if self.settled(output.attempt):
            return False
        return output.attempt in self._runs if isinstance(output, CheckRequest) else self.new(output)

    def new(self, event: Cleared | Recall) -> bool:
        """Return whether this event must still be written. If so, count it as written from now on."""
        if isinstance(event, Recall):
            return event.recall_id not in self._recall_ids and self.note(event)
        seq, final = self._cleared.get(event.attempt, (-2, False))
        return not final and (event.final or event.seq > seq) and self.note(event)

    def note(self, event: Cleared | Recall) -> bool:
        """Record a recall or a clearance if it belongs to the first run of its attempt.

        Return whether it was recorded.
        """
        if not self._first_runs.is_first(event.attempt, event.run):
            return False
        if isinstance(event, Recall):
            self._recall_ids.add(event.recall_id)
        else:
            seq, final = self._cleared.get(event.attempt, (-2, False))
            self._cleared[event.attempt] = (max(seq, event.seq), final or event.final)
        return True

    def settled(self, attempt: int) -> bool:
        return self._cleared.get(attempt, (-2, False))[1]

    def drop_settled(self) -> None:
        for attempt in [attempt for attempt in self._runs if self.settled(attempt)]:
            del self._runs[attempt]
        self._tidy()

    def _begin(self, event: Started) -> None:
        if not self._first_runs.register(event) or self._denied:
            return
        key = RunKey(request_id=self.request_id, tenant=self.tenant, attempt=event.attempt, run=event.run)
        run = RunCheck(key, self.policy, immediate_rules(self.policy, self.tenant), self._context)
        run.gated = self._gated or _may_become_gated(self.policy, event)
        self._runs[event.attempt] = run

    def _on_closed(self, event: Closed) -> list[RunOutput]:
        runs = list(self._runs.values())
        self._perhaps_closed = True
        if event.cause not in REFUTABLE_CAUSES:
            self._closed = True
        elif event.cause == "stalled":  # perhaps this run never ends, but its last text is shown
            runs = [run for run in runs if run.key.attempt == event.attempt and run.last_seq <= event.seen_seq]
        elif event.cause == "attempts_failed":
            runs = [run for run in runs if run.key.attempt in self._failed]
        else:
            runs = []
        # Even if the ``Closed`` is void, a missing chunk of a failed run is never shown.
        return self._finish(runs, None, closed=self._closed or all(run.key.attempt in self._failed for run in runs))

    def _finish(self, runs: list[RunCheck], last_seq: int | None, *, closed: bool = False) -> list[RunOutput]:
        outputs = [output for run in runs for output in run.finish(last_seq, closed=closed)]
        for run in runs:
            self._after(run)
        self._tidy()
        return outputs

    def _after(self, run: RunCheck) -> None:
        if run.unread and run not in self.unread:
            self.unread.append(run)
        if run.done:
            self._tidy()

    def _on_verdict(self, event: Verdict) -> None:
        if self._judged:
            return
        self._judged = True
        if event.decision == "deny":  # the answer is never shown
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


def _may_become_gated(policy: Policy, started: Started) -> bool:
    """Return whether the policy would make the delivery ``gated``. This is a guess, made before the verdict is known.

    If the policy has the rail ``admission``, evaluate ``admission.rego`` with placeholders for facts that are not known
    here, such as the length of the prompt. If Rego gives no answer or an invalid one, return True.
    """
    admission = Admission(allow=True)
    if any(rail.name == _ADMISSION_RAIL for rail in policy.document.rails.rail):
        question = AdmissionRequest(
            tenant=started.tenant, model=started.model, lane="interactive", attempt=started.attempt, prompt_chars=0,
            max_tokens=1, mode=started.delivery.mode, egress="allowed",
        )  # fmt: skip
        try:
            admission = policy.admit(question)
        except RulingError:
            return True
    return policy.tighten(started.delivery, admission).mode == "gated"
