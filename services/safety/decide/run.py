"""The checks of one run's text. They decide what is recalled, and how far the text is cleared.

All decisions depend only on the text, on character offsets in it, and on the policy. They do not depend on how the text
was cut into chunks, when the chunks arrived, or when a check answered. The only exception is a check that could not be
done.

- Tier 0 (the search for patterns) reads every character. It reports a finding as soon as the finding is certain. After
  the first finding that stops the answer, no more text is read.
- Tier 1 (NeMo rails) and tier 2 (classifiers) check windows. The offset at which a window ends does not depend on
  chunks or time. The outcomes of checks are processed in the order of the windows.
- If a window passes tier 1, the chunks before its end are cleared. But if its last characters may be the start of a
  finding, the chunks with these characters are not cleared yet.
- The last clearance of a run requires that the text passed tier 2, too. With the delivery mode ``gated``, every
  clearance requires this.
- If the check of a window could not be done, the policy decides whether the text of the window is recalled. This also
  applies if the check has no answer when more than ``max_waiting_chars`` characters of text follow the window.

No I/O.
"""

from collections import deque
from typing import Final, NamedTuple

from schemas.stream import Chunk
from services.policy import FoundSpan, Match, Policy, Scanner
from services.safety.decide.check_types import CheckOutcome, CheckRequest, CheckResult, RunOutput, Unchecked
from services.safety.decide.recalls import CheckContext, RecallBuilder, RunKey
from services.safety.decide.run_text import RunText
from services.safety.decide.windows import PendingCheck, WindowTracker

SLICE_CHARS: Final = 1_024
"""Maximum number of characters that are read at a time, which takes a fraction of a millisecond.

A longer text is read in several slices, between which texts of other tenants are read. A text in which many matches
start counts as longer than it is, because it may cost 200 times as much as prose.
"""

PIECE_CHARS: Final = 32
"""A slice is read in pieces of this many characters. After each piece, the cost of reading it is added."""

_Outputs = list[RunOutput]

NOTHING: Final[_Outputs] = []


class _Clearance(NamedTuple):
    """A planned ``Cleared`` event.

    It is written when ``required_passes`` windows of the run have passed tier 2, the classifiers.
    """

    seq: int
    required_passes: int
    final: bool


class RunCheck:
    """The checks of one run.

    ``add``, ``finish``, ``read`` and ``take_outcome`` return a list of events to write (``Recall`` and ``Cleared``)
    and further checks to run. The caller must process this list in its order.

    Attributes:
        gated: Whether the delivery mode is ``gated``.
        unread: Text that the method ``read`` has not processed yet.
    """

    __slots__ = ("_clearing", "_context", "_due", "_ended", "_held_to", "_last_seq", "_plain", "_policy", "_recalls",
                 "_scanner", "_stopped", "_text", "_tier_1", "_tier_2", "_trackers", "gated", "key",
                 "unread")  # fmt: skip

    def __init__(self, key: RunKey, policy: Policy, immediate: frozenset[int], context: CheckContext) -> None:
        safety = policy.document.safety
        self.key = key
        self.gated = False
        self._policy = policy
        self._context = context
        self._scanner = Scanner(policy.automaton, immediate)
        self._tier_1 = WindowTracker(1, safety.windows)
        self._tier_2 = WindowTracker(2, safety.classifier_windows) if safety.classifiers else None
        # Tier 2 is first, so that if both have a window here, the clearance of tier 1 can wait for that of tier 2.
        self._trackers: tuple[WindowTracker, ...] = (
            (self._tier_1,) if self._tier_2 is None else (self._tier_2, self._tier_1)
        )
        self._text = RunText(max(tracker.windows.context_chars for tracker in self._trackers))
        self.unread: deque[str] = deque()
        self._due = min(tracker.next for tracker in self._trackers)  # the end of the next window of any tier
        self._plain = self._due  # number of characters until a window ends, which only tier 0 reads
        self._stopped = False  # whether tier 0 stopped the answer
        self._recalls = RecallBuilder(key, policy, context)
        self._clearing: deque[_Clearance] = deque()
        self._held_to = 0  # checks of windows up to here were held back, so their wait is counted from here
        self._last_seq: int | None = None
        self._ended = False

    @property
    def done(self) -> bool:
        if self._clearing or not (self._stopped or self._ended):
            return False
        for tracker in self._trackers:  # noqa: SIM110 - asked after every outcome
            if tracker.oldest() is not None:
                return False
        return True

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` up to which no chunk is missing; -1 if the first chunk is missing."""
        return self._text.next_seq - 1

    def add(self, chunk: Chunk) -> _Outputs:
        """Take a chunk, and check at most ``SLICE_CHARS`` of its text. Later calls of ``read`` check the rest."""
        size, text = len(chunk.text), self._text
        if size < self._plain and text.take(chunk):  # nearly every chunk
            text.fresh.append(chunk)
            self._plain -= size
            matches = self._scanner.feed(chunk.text)
            if self._scanner.work:
                self._account()
            if not matches:
                return NOTHING
            outputs: _Outputs = []
            self._apply(matches, outputs)
            return outputs
        beyond = self._last_seq is not None and chunk.seq > self._last_seq  # the fold ignores such a chunk
        if self._stopped or beyond:
            return NOTHING
        for ready in text.add(chunk):
            text.fresh.append(ready)
            self.unread.append(ready.text)
        return self.read()

    def finish(self, last_seq: int | None, *, closed: bool = False) -> _Outputs:
        """Set the end of the run. Then check text as ``read`` does.

        A later call changes the end only if ``closed`` is true.

        Args:
            last_seq: ``seq`` of the run's last chunk. If None, the run ends before the first chunk that was not read.
            closed: Whether the request is closed. Then a chunk that was not read is never shown.
        """
        if self._last_seq is None or closed:
            self._last_seq = self.last_seq if last_seq is None else last_seq
        return self.read()

    def read(self) -> _Outputs:
        """Check the next part of ``unread``, at most ``SLICE_CHARS`` characters."""
        outputs: _Outputs = []
        room = SLICE_CHARS
        while self.unread and room > 0:
            text, at = self.unread.popleft(), 0
            while at < len(text) and room > 0 and not self._stopped:
                piece = text[at : at + min(room, PIECE_CHARS)]
                at += len(piece)
                self._read(piece, outputs)
                room -= len(piece) + self._account()
            if at < len(text) and not self._stopped:
                self.unread.appendleft(text[at:])
        if self._last_seq is not None and not self.unread and self._text.next_seq > self._last_seq:
            self._end(outputs)
        busy = self._stopped or self.unread or self._last_seq is not None
        self._plain = 0 if busy else self._due - self._scanner.position
        return outputs

    def take_outcome(self, check: CheckRequest, outcome: CheckOutcome) -> _Outputs:
        outputs: _Outputs = []
        for tracker in self._trackers:
            if tracker.tier == check.tier:
                tracker.take_outcome(check.number, outcome)
        self._count(outputs)
        return outputs

    def _read(self, text: str, outputs: _Outputs) -> None:
        at = 0
        while at < len(text) and not self._stopped:
            due = self._due
            piece = text[at : at + due - self._scanner.position]
            at += len(piece)
            stops = self._apply(self._scanner.feed(piece), outputs)
            if self._scanner.position == due and not stops:
                self._open_windows(outputs, last=False)

    def _account(self) -> int:
        work, self._scanner.work = self._scanner.work, 0  # the matcher's look-ups beyond one per character
        self._context.work += work
        return work

    def _end(self, outputs: _Outputs) -> None:
        if self._ended or self._stopped:
            return
        self._ended = True
        if self._apply(self._scanner.finish(), outputs):
            return
        if self._text.length:
            self._open_windows(outputs, last=True)
        else:
            outputs.append(self._recalls.cleared(-1, final=True))

    def _open_windows(self, outputs: _Outputs, *, last: bool) -> None:
        position = self._scanner.position
        for tracker in self._trackers:
            if last or tracker.next == position:
                start, text = self._text.window(position, tracker.windows.context_chars)
                pending = PendingCheck(self._context.number(), start, position, last, tracker.reached)
                if tracker.tier == 1:
                    self._settle_clearance(pending)
                if tracker.ask(pending):
                    outputs.append(
                        CheckRequest(
                            number=pending.number, tier=tracker.tier, tenant=self.key.tenant, attempt=self.key.attempt,
                            policy=self._policy, text=text,
                        )
                    )  # fmt: skip
                    self._give_up_oldest(tracker, outputs)
        self._due = min([tracker.next for tracker in self._trackers])

    def _settle_clearance(self, pending: PendingCheck) -> None:
        tier_2 = self._tier_2
        if pending.last or self.gated:
            pending.required_passes = tier_2.asked if tier_2 else 0
        if pending.last:
            pending.clears = self.last_seq
            return
        offset = self._scanner.undecided
        if self.gated:
            offset = min(offset, pending.end - self._tier_1.windows.hold_chars)
            offset = min(offset, tier_2.reached) if tier_2 else offset
        pending.clears = self._text.whole_before(offset)

    def _give_up_oldest(self, tracker: WindowTracker, outputs: _Outputs) -> None:
        oldest = tracker.oldest()
        position, limit = self._scanner.position, self._policy.document.safety.max_waiting_chars
        if self._context.holding:
            self._held_to = position
        since = max(oldest.end, self._held_to) if oldest is not None else 0
        if oldest is not None and oldest.outcome is None and position - since > limit:
            oldest.outcome = Unchecked("too much text is waiting for this check")
            self._count(outputs)

    def _count(self, outputs: _Outputs) -> None:
        for tracker in self._trackers:
            for pending in tracker.countable():
                if isinstance(pending.outcome, CheckResult):
                    spans = pending.outcome.spans
                    tracker.stopped = bool(spans) and self._recalls.window(tracker, pending, spans, outputs)
                else:
                    tracker.stopped = self._recalls.unchecked(tracker, pending, outputs)
                if tracker.tier == 1 and not tracker.stopped and pending.clears is not None:
                    self._clearing.append(_Clearance(pending.clears, pending.required_passes, pending.last))
        tier_2 = self._tier_2
        passed = tier_2.passed if tier_2 else 0
        while self._clearing and self._clearing[0].required_passes <= passed:
            clearance = self._clearing.popleft()
            outputs.append(self._recalls.cleared(clearance.seq, final=clearance.final))
        if tier_2 and tier_2.stopped:
            self._clearing.clear()

    def _apply(self, matches: list[Match], outputs: _Outputs) -> bool:
        for match in matches:
            rule = match.rule
            if self._recalls.finding(0, FoundSpan(rule.name, rule.category, match.start, match.end), outputs):
                self._stopped = True
                self._plain = 0
                self.unread.clear()
                break
        return self._stopped
