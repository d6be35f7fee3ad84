"""The fold of one request: compute the visible text from the events on the stream log. It follows six rules.

1. Voice: only the text of one run is shown. This run is the voice.
2. Order: chunks are shown in the order of ``seq``, each of them once.
3. Gate: no model text is shown before the policy allows it.
4. Delivery: the amount of unchecked text is limited.
5. Recall: withdrawn text is never shown again.
6. End: the answer is complete when its run has finished and its text is checked. The request ends with ``Closed``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, get_args

from schemas.requests import Delivery
from schemas.stream import (
    Chunk,
    Cleared,
    Closed,
    Conclusion,
    Cutover,
    Failed,
    Finished,
    InputGate,
    OutputCheck,
    Recall,
    RunEvent,
    Started,
    StreamEvent,
    Verdict,
)
from services.stream.delivery import releasable_chunks
from services.stream.ops import Begin, Close, Finish, Op, Refuse, Restart, Withdraw
from services.stream.transcript import Transcript
from services.stream.voice import VoiceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Governance:
    """The checks that a reader requires.

    The event ``Started`` has fields of the same names. A check is off only if both ``Governance`` and ``Started`` say
    ``off``.

    Attributes:
        input_gate: ``hold`` requires that nothing is shown before the verdict on the prompt. ``off`` requires nothing.
        output_check: ``on`` requires that only a limited amount of unchecked text is shown, and that an answer is
            complete only after all of it was checked. ``off`` requires nothing.
    """

    input_gate: InputGate = "hold"
    output_check: OutputCheck = "on"


AS_STARTED: Final = Governance(input_gate="off", output_check="off")
"""Requires no more checks than ``Started`` names. It is for programs that read a log and show nothing to people."""

Ops = tuple[Op, ...]
NOTHING: Final[Ops] = ()
_CONCLUSIONS: Final = frozenset(get_args(Conclusion))
_NO_ANSWER_COMES: Final = frozenset({"attempts_failed", "cannot_begin", "no_first_token", "stalled"})
"""Causes of a ``Closed`` that do not hold if the voice has finished or more than ``seen_attempts`` attempts opened."""


class Screen:
    """Computes the text that a reader of one request may see.

    Feed all events of the request in log order, and apply the returned ops in order. The result depends only on the
    events and on ``Governance``.

    Attributes:
        closed: The ``Closed`` that ended the request; None before it.
        verdict: The first ``Verdict``; None before it.
        finished: The ``Finished`` of the run whose text may be shown; None before it.
        stopped: The ``Recall`` event that withdrew the whole answer; None if there is none.
    """

    __slots__ = (
        "_cleared",
        "_governance",
        "_log_ms",
        "_mask_done",
        "_pending_stop",
        "_recalls",
        "_recalls_applied_to",
        "_text",
        "_voice_state",
        "closed",
        "final",
        "finished",
        "over",
        "request_id",
        "stopped",
        "verdict",
        "withdrawn",
    )

    def __init__(self, request_id: str, governance: Governance = AS_STARTED) -> None:
        self.request_id = request_id
        self._governance = governance
        self.closed: Closed | None = None
        self.verdict: Verdict | None = None
        self.stopped: Recall | None = None
        self.finished: Finished | None = None
        self.final = False
        self.over = False
        self.withdrawn: str | None = None
        self._voice_state = VoiceState.initial()
        self._text = Transcript()
        self._cleared = -1
        self._mask_done = False
        self._pending_stop: Recall | None = None
        self._recalls: dict[tuple[int, str], list[Recall]] = {}  # bounded by safety's limit of findings in a run
        self._recalls_applied_to: Started | None = None
        self._log_ms = 0

    @property
    def visible(self) -> str:
        return self._text.visible if self.withdrawn is None else self.withdrawn

    @property
    def exposed_tokens(self) -> int:
        """Number of shown tokens that the safety service has not checked."""
        return self._text.tokens(self._cleared + 1, self._text.released) if self.withdrawn is None else 0

    @property
    def voice(self) -> Started | None:
        """The ``Started`` event of the voice, the run whose text may be shown. None if there is no such run now."""
        return self._voice_state.voice

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` up to which no chunk of the voice is missing; -1 if the first chunk is missing."""
        return self._text.last_seq

    @property
    def has_spoken(self) -> bool:
        return self._voice_state.has_spoken

    @property
    def attempts(self) -> int:
        return self._voice_state.last_attempt

    @property
    def candidates(self) -> frozenset[int]:
        return self._voice_state.candidates

    def visible_at(self, offset: int) -> int:
        """Convert an offset in the voice's text to an offset in the visible text.

        If the text at ``offset`` is not shown yet, return the end of the visible text.
        """
        text = self._text
        return text.visible_at(offset) if offset < text.released_chars else text.visible_length

    @property
    def conclusion(self) -> Conclusion | None:
        """How the answer ended; None if it has not ended."""
        if (verdict := self.verdict) is not None and verdict.decision == "deny":
            return "denied"
        if self.stopped is not None:
            shown = self.withdrawn is not None or self.verdict is not None  # a closed gate hides the replacement too
            return "recalled" if shown else None
        return "answered" if self.over and self.closed is None else None

    @property
    def gate_open(self) -> bool:
        """Whether the gate allows text to be shown."""
        if self.verdict is not None and self.verdict.decision != "mask":
            return self.verdict.decision == "allow"
        voice = self._voice_state.voice
        return self._mask_done or (voice is not None and voice.input_gate == self._governance.input_gate == "off")

    @property
    def delivery(self) -> Delivery | None:
        """The delivery settings in the verdict, or else in the voice's ``Started``; None if neither has them."""
        if self.verdict is not None and self.verdict.delivery is not None:
            return self.verdict.delivery
        voice = self._voice_state.voice
        return None if voice is None else voice.delivery

    def feed(self, event: StreamEvent, log_ms: int = 0) -> Ops:
        """Apply one event. Return the ops that a client must apply.

        Args:
            event: The next event of the request on the log.
            log_ms: The broker's timestamp of the event, in milliseconds.

        Raises:
            ValueError: The event is about another request.
        """
        if event.request_id != self.request_id:
            msg = f"an event of request {event.request_id} cannot be folded into {self.request_id}"
            raise ValueError(msg)
        if log_ms > self._log_ms:  # noqa: PLR1730 - each event of each request passes here
            self._log_ms = log_ms
        if self.closed is not None and type(event) is not Recall:
            return NOTHING  # a recall counts even after the end, because later readers must not see the text
        rule = self._RULES.get(type(event))
        return NOTHING if rule is None else rule(self, event)

    def _on_verdict(self, event: Verdict) -> Ops:
        if self.verdict is not None:
            return NOTHING
        self.verdict = event
        if event.decision != "deny":
            return self._progress()
        self.over = True
        self.withdrawn = event.refusal
        return (Refuse(text=event.refusal, policy_version=event.policy_version),)

    def _on_started(self, event: Started) -> Ops:
        if not self._voice_state.register(event) or self._voice_state.voice is not event or self.over:
            return NOTHING
        return (_begin(event), *self._apply_earlier_recalls())

    def _on_chunk(self, event: Chunk) -> Ops:
        voice_state = self._voice_state
        if self.over or not voice_state.may_speak(event.attempt, event.run):
            return NOTHING
        if self.finished is not None and event.seq > self.finished.last_seq:
            return NOTHING
        ops: Ops = NOTHING
        if not voice_state.has_spoken:
            undecided = voice_state.voice is None
            voice_state.decide(event.attempt)
            ops = self._begin_voice() if undecided else NOTHING
        self._text.add(event, self._log_ms)
        return ops + self._progress()

    def _on_finished(self, event: Finished) -> Ops:
        if not self._is_voice(event):
            return self._leave_race(event)
        if self.finished is None and not self.over:
            self.finished = event
        return self._progress()

    def _on_failed(self, event: Failed) -> Ops:
        return self._leave_race(event) if self._voice_state.voice is None else NOTHING

    def _leave_race(self, event: Finished | Failed) -> Ops:
        # An attempt of a race ended without text. Another attempt may now be the voice.
        if self._denied or not self._voice_state.may_speak(event.attempt, event.run):
            return NOTHING
        self._voice_state.drop(event.attempt)
        return self._begin_voice()

    def _on_cutover(self, event: Cutover) -> Ops:
        if self.stopped is not None or self._denied or not self._cutover_holds(event):
            return NOTHING
        self._voice_state.hand_over(event)
        self._mask_done = self._mask_done or event.trigger == "mask"
        self._text = Transcript()
        self._recalls_applied_to = None
        self._cleared = -1
        self.final = False
        self.finished = None
        self.over = False  # for ``mask``: an answer without a gate may be complete already
        if len(self._voice_state.candidates) > 1:
            return NOTHING  # a race: the first chunk decides
        restart = Restart(attempt=event.attempt, trigger=event.trigger)
        voice = self._voice_state.voice
        return (restart,) if voice is None else (restart, _begin(voice), *self._apply_earlier_recalls())

    def _on_cleared(self, event: Cleared) -> Ops:
        if not self._is_voice(event):
            return NOTHING
        self._cleared = max(self._cleared, event.seq)
        self.final = self.final or event.final
        return self._progress()

    def _on_recall(self, event: Recall) -> Ops:
        if self.stopped is not None or self._denied:
            return NOTHING
        self._recalls.setdefault((event.attempt, event.run), []).append(event)
        return self._apply_recall(event) if self._is_voice(event) else NOTHING

    def _apply_earlier_recalls(self) -> Ops:
        voice = self._voice_state.voice
        if voice is None or voice is self._recalls_applied_to:
            return NOTHING
        self._recalls_applied_to = voice
        earlier = self._recalls.get((voice.attempt, voice.run), ())
        return tuple(op for recall in earlier for op in self._apply_recall(recall))

    def _apply_recall(self, event: Recall) -> Ops:
        if self.stopped is not None:
            return NOTHING
        if event.action == "redact":
            return tuple(self._text.redact(event))
        self.stopped = event
        self._pending_stop = event
        self.over = True
        return self._progress()

    def _on_closed(self, event: Closed) -> Ops:
        if not self._close_holds(event):
            return NOTHING
        self.closed = event
        self.over = True
        return (Close(outcome=event.outcome, reason=event.reason),)

    @property
    def _denied(self) -> bool:
        return self.verdict is not None and self.verdict.decision == "deny"

    def _cutover_holds(self, event: Cutover) -> bool:
        if event.trigger == "mask":
            wanted = self.verdict is not None and self.verdict.decision == "mask" and not self._mask_done
            return wanted and self._voice_state.effective(event, self._text.last_seq)
        return self.finished is None and self._voice_state.effective(event, self._text.last_seq)

    def _close_holds(self, event: Closed) -> bool:
        cause, conclusion = event.cause, self.conclusion
        if cause is None:
            return True  # the writer gives no cause
        if conclusion is not None or cause in _CONCLUSIONS:
            return cause == conclusion
        voice_state = self._voice_state
        if cause in _NO_ANSWER_COMES and (self.finished is not None or voice_state.last_attempt > event.seen_attempts):
            return False
        holds = {
            "no_verdict": self.verdict is None and not self.gate_open,
            "no_first_token": not voice_state.has_spoken,
            "stalled": self._text.last_seq <= event.seen_seq,
            "cannot_begin": voice_state.voice is None,
            "unreadable": not voice_state.runs.by_attempt,
        }
        return holds.get(cause, True)  # a deadline, a client that left, a full router: the log cannot refute these

    def _is_voice(self, event: RunEvent) -> bool:
        voice = self._voice_state.voice
        return voice is not None and voice.attempt == event.attempt and voice.run == event.run

    def _begin_voice(self) -> Ops:
        voice = self._voice_state.voice
        return NOTHING if voice is None else (_begin(voice), *self._apply_earlier_recalls())

    def _withdraw(self, recall: Recall) -> Ops:
        end = self._text.visible_length
        self.withdrawn = recall.replacement
        self._pending_stop = None
        return (
            Withdraw(
                end=end,
                text=recall.replacement,
                rule=recall.rule,
                category=recall.category,
                policy_version=recall.policy_version,
                recall_id=recall.recall_id,
            ),
        )

    def _progress(self) -> Ops:
        if not self.gate_open:
            return NOTHING
        if self._pending_stop is not None:
            return self._withdraw(self._pending_stop)
        if self.over:
            return NOTHING
        voice, delivery = self._voice_state.voice, self.delivery
        if voice is None or delivery is None:
            return NOTHING
        text, ops = self._text, list[Op]()
        if text.released < len(text.chunks):
            cleared = len(text.chunks) - 1 if self.final else self._cleared
            check: OutputCheck = "on" if self._checked(voice) else "off"
            ops = text.release(releasable_chunks(text, delivery, check, cleared, self._log_ms))
        if self.finished is not None and self._complete(self.finished, voice):
            self.over = True
            ops.append(_finish(self.finished))
        return tuple(ops)

    def _complete(self, finished: Finished, voice: Started) -> bool:
        checked = self.final or not self._checked(voice)
        return checked and self._text.last_seq >= finished.last_seq and self._text.released == len(self._text.chunks)

    def _checked(self, voice: Started) -> bool:
        return "on" in (voice.output_check, self._governance.output_check)

    _RULES: ClassVar[dict[type, Callable[["Screen", Any], Ops]]] = {
        Verdict: _on_verdict,
        Started: _on_started,
        Chunk: _on_chunk,
        Finished: _on_finished,
        Failed: _on_failed,
        Cutover: _on_cutover,
        Cleared: _on_cleared,
        Recall: _on_recall,
        Closed: _on_closed,
    }


def _begin(started: Started) -> Begin:
    return Begin(attempt=started.attempt, run=started.run, model=started.model)


def _finish(finished: Finished) -> Finish:
    return Finish(
        attempt=finished.attempt, run=finished.run, finish_reason=finished.finish_reason, usage=finished.usage
    )
