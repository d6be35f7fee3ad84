"""The checks of one run's text: what is found, and how far the text is cleared.

Everything decided here depends on the text and the policy alone, by character offsets, never on how the text was cut
into chunks, when they came or when a check answered:

- Tier 0 reads every character. A finding is said as soon as it is certain. The first that stops ends all reading there.
- Tier 1 and 2 look at windows that end at absolute offsets. Answers count in the order of the offsets, whenever they
  come.
- A look of tier 1 clears the chunks before its offset, less what tier 0 holds to be the possible start of a finding.
  In gated delivery it also waits for tier 2, and holds back the newest characters, where a phrase may be half there.

Pure.
"""

from collections import deque
from typing import Final, NamedTuple

from schemas.stream import Chunk
from services.policy import Match, Policy, Scanner
from services.safety.judge import Judge
from services.safety.lookout import Lookout, Pending
from services.safety.looks import Answer, Broke, Look, Out, Seen, Spot
from services.safety.transcript import Transcript
from services.safety.verdicts import RunKey, Stamp

SLICE_CHARS: Final = 1_024
"""Most characters read in one go: a fraction of a millisecond. A longer text takes turns with those of other tenants.

Text in which many matches are begun at once counts as so much more: some is 200 times as dear as prose.
"""

PIECE_CHARS: Final = 32
"""After so many it is looked what they cost."""

_Outs = list[Out]

NOTHING: Final[_Outs] = []


class _Clearance(NamedTuple):
    """Chunks that passed tier 1, and how many looks of tier 2 must have passed before that is said."""

    seq: int
    after: int
    final: bool


class RunCheck:
    """One run. Its methods return the events and looks that follow, in order.

    Attributes:
        key: Whose text.
        gated: Whether delivery is gated; from the moment it is set.
        unread: Text that was heard and waits for ``read``.
    """

    __slots__ = ("_clearing", "_due", "_ended", "_judgement", "_last_seq", "_looks", "_plain", "_policy", "_scanner",
                 "_stamp", "_stopped", "_text", "gated", "key", "unread")  # fmt: skip

    def __init__(self, key: RunKey, policy: Policy, prompt: frozenset[int], stamp: Stamp) -> None:
        safety = policy.document.safety
        self.key = key
        self.gated = False
        self._policy = policy
        self._stamp = stamp
        self._scanner = Scanner(policy.machine, prompt)
        # Tier 2 comes first: where both are due, what tier 1 clears can wait for it.
        self._looks: tuple[Lookout, ...] = (
            *((Lookout(2, safety.classifier_windows),) if safety.classifiers else ()),
            Lookout(1, safety.windows),
        )
        self._text = Transcript(max(look.windows.context_chars for look in self._looks))
        self.unread: deque[str] = deque()
        self._due = min(look.next for look in self._looks)  # the offset of the next look of any tier
        self._plain = self._due  # characters that may be read before anything but tier 0 is due
        self._stopped = False  # by tier 0
        self._judgement = Judge(key, policy, stamp)
        self._clearing: deque[_Clearance] = deque()
        self._last_seq: int | None = None
        self._ended = False

    @property
    def done(self) -> bool:
        """Whether nothing more will come of it."""
        over = self._stopped or self._ended
        return over and not self._clearing and all(look.oldest() is None for look in self._looks)

    @property
    def last_seq(self) -> int:
        """The last chunk without a gap; -1 for none."""
        return self._text.next_seq - 1

    def hear(self, chunk: Chunk) -> _Outs:
        """Take a chunk and read it; where it is very long, ``read`` reads the rest."""
        size, text = len(chunk.text), self._text
        if size < self._plain and text.take(chunk):  # nearly every chunk
            text.fresh.append(chunk)
            self._plain -= size
            matches = self._scanner.feed(chunk.text)
            if self._scanner.work:
                self._account()
            return self._judged(matches) if matches else NOTHING
        beyond = self._last_seq is not None and chunk.seq > self._last_seq  # the fold shows nobody such a chunk
        if self._stopped or beyond:
            return NOTHING
        for heard in text.hear(chunk):
            text.fresh.append(heard)
            self.unread.append(heard.text)
        return self.read()

    def finish(self, last_seq: int | None) -> _Outs:
        """The text ends with this chunk, which may still be missing; None ends it with what was heard."""
        if self._last_seq is None:
            self._last_seq = self.last_seq if last_seq is None else last_seq
        return self.read()

    def read(self) -> _Outs:
        """Read at most ``SLICE_CHARS`` of what was heard, and the end when it is reached."""
        outs: _Outs = []
        room = SLICE_CHARS
        while self.unread and room > 0:
            text, at = self.unread.popleft(), 0
            while at < len(text) and room > 0 and not self._stopped:
                piece = text[at : at + min(room, PIECE_CHARS)]
                at += len(piece)
                self._read(piece, outs)
                room -= len(piece) + self._account()
            if at < len(text) and not self._stopped:
                self.unread.appendleft(text[at:])
        if self._last_seq is not None and not self.unread and self._text.next_seq > self._last_seq:
            self._end(outs)
        busy = self._stopped or self.unread or self._last_seq is not None
        self._plain = 0 if busy else self._due - self._scanner.position
        return outs

    def answer(self, look: Look, answer: Answer) -> _Outs:
        """Take what a check said."""
        outs: _Outs = []
        for lookout in self._looks:
            if lookout.tier == look.tier:
                lookout.answer(look.number, answer)
        self._count(outs)
        return outs

    def _read(self, text: str, outs: _Outs) -> None:
        at = 0
        while at < len(text) and not self._stopped:
            due = self._due
            piece = text[at : at + due - self._scanner.position]
            at += len(piece)
            stops = self._judge(self._scanner.feed(piece), outs)
            if self._scanner.position == due and not stops:
                self._look(outs, last=False)

    def _account(self) -> int:
        """Note what the matcher did beyond the ordinary; returns it."""
        work, self._scanner.work = self._scanner.work, 0
        self._stamp.work += work
        return work

    def _judged(self, matches: list[Match]) -> _Outs:
        outs: _Outs = []
        if self._judge(matches, outs):
            self._plain = 0
        return outs

    def _end(self, outs: _Outs) -> None:
        if self._ended or self._stopped:
            return
        self._ended = True
        if self._judge(self._scanner.finish(), outs):
            return
        if self._text.length:
            self._look(outs, last=True)
        else:
            outs.append(self._judgement.cleared(-1, final=True))

    def _look(self, outs: _Outs, *, last: bool) -> None:
        position = self._scanner.position
        for lookout in self._looks:
            if last or lookout.next == position:
                start, text = self._text.window(position, lookout.windows.context_chars)
                pending = Pending(self._stamp.number(), start, position, last)
                if lookout.tier == 1:
                    self._settle_clearance(pending)
                if lookout.ask(pending):
                    outs.append(self._question(lookout, pending, text))
                    self._overflow(lookout, outs)
        self._due = min(look.next for look in self._looks)

    def _question(self, lookout: Lookout, pending: Pending, text: str) -> Look:
        return Look(
            number=pending.number,
            tier=lookout.tier,
            tenant=self.key.tenant,
            policy=self._policy,
            start=pending.start,
            text=text,
            last=pending.last,
        )

    def _settle_clearance(self, pending: Pending) -> None:
        """What a look clears is settled by the text up to its offset; its answer only says whether."""
        tier_2 = self._looks[0] if len(self._looks) > 1 else None
        if pending.last or self.gated:
            pending.after = tier_2.asked if tier_2 else 0
        if pending.last:
            pending.clears = self.last_seq
            return
        offset = self._scanner.undecided
        if self.gated:
            offset = min(offset, pending.end - self._looks[-1].windows.hold_chars)
            offset = min(offset, tier_2.reached) if tier_2 else offset
        pending.clears = self._text.whole_before(offset)

    def _overflow(self, lookout: Lookout, outs: _Outs) -> None:
        oldest = lookout.oldest()
        limit = self._policy.document.safety.max_waiting_chars
        if oldest is not None and oldest.answer is None and self._scanner.position - oldest.end > limit:
            oldest.answer = Broke("too much text is waiting for this check")
            self._count(outs)

    def _count(self, outs: _Outs) -> None:
        """Let answers count, and clear what they allow."""
        for lookout in self._looks:
            for pending in lookout.answered():
                if isinstance(pending.answer, Seen):
                    spots = pending.answer.spots
                    lookout.shut = bool(spots) and self._judgement.window(lookout, pending, spots, outs)
                else:
                    lookout.shut = self._judgement.unchecked(lookout, pending, outs)
                if lookout.tier == 1 and not lookout.shut and pending.clears is not None:
                    self._clearing.append(_Clearance(pending.clears, pending.after, pending.last))
        tier_2 = self._looks[0]
        passed = tier_2.passed if tier_2.tier == 2 else 0
        while self._clearing and self._clearing[0].after <= passed:
            clearance = self._clearing.popleft()
            outs.append(self._judgement.cleared(clearance.seq, final=clearance.final))
        if tier_2.tier == 2 and tier_2.shut:
            self._clearing.clear()

    def _judge(self, matches: list[Match], outs: _Outs) -> bool:
        """Tier 0. Returns whether the answer is stopped."""
        for match in matches:
            rule = match.rule
            if self._judgement.finding(0, Spot(rule.name, rule.category, match.start, match.end), outs):
                self._stopped = True
                self.unread.clear()
                break
        return self._stopped
