"""Inject faults into the safety service.

The test itself writes the events of the other services, and knows which text is forbidden.
"""

import asyncio

from schemas.stream import Chunk, Cleared, Finished, Recall
from tests.chaos.faults import run_round
from tests.chaos.results import RoundResult, conclude
from tests.chaos.talk import STEP_S, Talk
from tests.support.waiting import comes_true

PROSE = (
    "A log is a sequence of records that only grows. ",
    "Whoever reads the same part of it knows the same. ",
    "The order is given once, by the one who keeps it. ",
    "A reader that comes late begins where it likes. ",
)
NEAR = ("It says how to build a pipe organ. ", "Order number 000-05-1120 was sent. ", "Ask anna at example dot com. ")
REDACTED = ("078-05-1120", "AKIAIOSFODNN7EXAMPLE", "anna.berg@example.org", "4111-1111-1111-1111")
STOPPED = ("how to build a pipe bomb", "-----BEGIN RSA PRIVATE KEY-----")

BEFORE, ACROSS, INSIDE, AFTER = "before", "across", "inside", "after"


class Speech(Talk):
    """An answer into which the test writes forbidden text.

    Each element of ``plan`` says when the test writes one piece of this text: ``BEFORE``, ``INSIDE`` (during) or
    ``AFTER`` the fault, or ``ACROSS`` the fault's start.

    Attributes:
        poison: (start, end, text) of each piece of forbidden text, which safety must take back. Positions are in
            characters.
        cuts: The text of each chunk.
    """

    def __init__(self, lab, rng, number, plan, *, long):
        super().__init__(lab)
        self._rng, self._long, self._after = rng, long, 0
        if number % 3 == 0:  # nothing is looked for behind what withdraws the whole answer
            self._plan = [(when, STOPPED[number % 2]) for when in plan[:1]]
        else:
            self._plan = [(when, REDACTED[(number + turn) % len(REDACTED)]) for turn, when in enumerate(plan)]
        self._queue, self._hold = rng.choice(PROSE), None
        self._near = not plan
        self.poison, self.cuts = [], []

    async def play(self, stage):
        await self.post(self.ask(), self.started(), self.verdict())
        steps = 0
        while not self._ended(stage, steps):
            self._think(stage, steps)
            if self._hold is not None and len(self.text) >= self._hold:  # half a poison stands there when it strikes
                if stage.phase == 0:
                    await asyncio.sleep(0.02)
                    continue
                self._hold = None
            await self._say()
            steps += 1
            await asyncio.sleep(self._rng.uniform(*STEP_S))
        while self._queue:
            await self._say()
        await self.post(self.finished())

    def _ended(self, stage, steps):
        self._after += stage.phase == 2
        if self._plan:
            return False
        return self._after > 10 if self._long else steps >= 10

    def _think(self, stage, steps):
        if self._plan and steps >= 3:
            when, text = self._plan[0]
            due = {BEFORE: True, ACROSS: True, INSIDE: stage.phase == 2 or (stage.phase == 1 and steps % 7 == 0)}
            if due.get(when, stage.phase == 2):
                self._plan.pop(0)
                self._queue += "Now: "
                start = len(self.text) + len(self._queue)
                self.poison.append((start, start + len(text), text))
                self._hold = start + len(text) // 2 if when == ACROSS and stage.phase == 0 else None
                self._queue += text + " is what it is. "
        if len(self._queue) < 20:
            self._queue += self._rng.choice(PROSE + NEAR if self._near else PROSE)

    async def _say(self):
        size = self._rng.randint(3, 14)
        if self._hold is not None:
            size = min(size, self._hold - len(self.text))
        piece, self._queue = self._queue[:size], self._queue[size:]
        self.cuts.append(piece)
        await self.post(self.chunk(piece))


async def round_of(lab, fault, rng):
    """Cause one fault while 32 answers are written, half of them with forbidden text. Return the result."""
    plans = [(BEFORE, AFTER), (ACROSS, AFTER), (INSIDE, AFTER), (ACROSS, INSIDE), (AFTER,), (INSIDE,)]
    through = [Speech(lab, rng, n, plans[n % 6] if n < 12 else (), long=True) for n in range(24)]
    inside = [Speech(lab, rng, n, (INSIDE,) if n < 4 else (), long=False) for n in range(8)]
    speeches = through + inside
    await run_round(lab, fault, rng, through=[s.play for s in through], inside=[s.play for s in inside])
    await comes_true(lambda: all(_final(lab, speech) for speech in speeches), lab.session_s + 60)
    found = _judge(lab, fault, speeches)
    if not found.unended:
        await _compare(lab, speeches, found)
    for speech in speeches:
        await lab.post(speech.closed())
    return conclude(lab, found)


def _final(lab, speech):
    """Return whether safety has finished with the answer: all of it is checked, or all of it is withdrawn."""
    return any(_ends(event) for _, event in lab.seen[speech.id])


def _ends(event):
    return (isinstance(event, Cleared) and event.final) or (isinstance(event, Recall) and event.action == "stop")


def _judge(lab, fault, speeches):
    found = RoundResult("safety", fault, answers=len(speeches))
    for speech in speeches:
        name = f"{speech.id} (poison {[text for *_, text in speech.poison]})"
        recalls = lab.events(speech.id, Recall)
        if not _final(lab, speech):
            found.unended += 1
            found.wrong.append(f"never finally cleared: {name}")
        visible = lab.screen(speech.id).visible
        shown = [text for *_, text in speech.poison if text in visible]
        missed = [text for start, end, text in speech.poison if not any(_meets(r, start, end) for r in recalls)]
        if shown or missed:
            found.visible += 1
            found.wrong.append(f"poison not taken back: shown {shown}, not recalled {missed}: {name}")
        for recall in recalls:
            if not any(_meets(recall, start, end) for start, end, _ in speech.poison):
                found.outcomes += 1
                found.wrong.append(f"harmless text recalled by {recall.rule}: {name}")
        found.duplicates += len(recalls) - len({recall.recall_id for recall in recalls})
        cleared = lab.events(speech.id, Cleared)
        found.duplicates += len(cleared) - len({(event.seq, event.final) for event in cleared})
        found.reactions += _reactions(lab, speech)
    return found


def _meets(recall, start, end):
    return recall.start < end and start < recall.end


def _reactions(lab, speech):
    pairs = [(
        lab.when(speech.id, lambda e: isinstance(e, Finished)),
        lab.when(speech.id, _ends),
    )]  # fmt: skip
    for start, end, _ in speech.poison:
        said = lab.when(speech.id, lambda e, at=end: isinstance(e, Chunk) and e.start + len(e.text) >= at)
        pairs.append((said, lab.when(speech.id, lambda e, s=start, t=end: isinstance(e, Recall) and _meets(e, s, t))))
    return [max(0.0, then - cause) for cause, then in pairs if cause is not None and then is not None]


async def _compare(lab, speeches, found):
    """Write the chunks of ``speeches`` again, without a fault. Check that safety recalls the same text as before.

    Each difference is added to ``found``.
    """
    again = [Talk(lab) for _ in speeches]
    for speech, copy in zip(speeches, again, strict=True):
        await copy.post(copy.ask(), copy.started(), copy.verdict(), *map(copy.chunk, speech.cuts), copy.finished())
    if not await comes_true(lambda: all(_final(lab, copy) for copy in again), 60):
        found.wrong.append("the same answers, undisturbed, are not cleared within 60 s")
    for speech, copy in zip(speeches, again, strict=True):
        if (held := _taken(lab, speech)) != (wanted := _taken(lab, copy)):
            found.outcomes += 1
            found.wrong.append(f"{speech.id}: recalls {held}, undisturbed {wanted}")
        await lab.post(copy.closed())


def _taken(lab, talk):
    return {
        (e.start, e.end, e.action, e.replacement, e.rule, e.category, e.policy_version)
        for e in lab.events(talk.id, Recall)
    }
