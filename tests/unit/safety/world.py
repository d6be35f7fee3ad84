"""Make logs, and simulate a safety service with random speed, random order of check outcomes, and crashes."""

import random
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery
from schemas.stream import Chunk, Cleared, Closed, Failed, Finished, Recall, Started, Verdict
from services.bus import Received
from services.policy import FoundSpan, build
from services.policy.source.files import read_files
from services.processor import Write
from services.safety.core import SafetyCore
from services.safety.decide.check_types import CheckRequest, CheckResult, Unchecked

ROOT = Path(__file__).parents[3]
NOW_US = 1_000_000_000_000


@cache
def policy(name="default", **changes):
    """Return the policy ``name`` of the repository. ``changes`` replace values of settings in its ``policy.toml``."""
    files = dict(read_files(ROOT / "policies" / name))
    text = files["policy.toml"].decode()
    for key, value in changes.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{key} ="))
        text = text.replace(old, f"{key} = {value}", 1)
    files["policy.toml"] = text.encode()
    return build(files)


def request_id(number=0):
    return uuid7(NOW_US // 1_000, number)


def record(event, partition=0, trace=None):
    """Return the event as a record of the stream log, as a core gets it."""
    return Received("railbus.streams", partition, 0, NOW_US // 1_000, event, trace)


class RunWriter:
    """Makes the events of one run of a request. ``request`` is the request's number."""

    def __init__(self, request=0, attempt=1, run="r1", tenant="acme", mode="optimistic", check="on"):
        self.head = {"request_id": request_id(request), "tenant": tenant, "at": NOW_US, "source": "test"}
        self.voice = {**self.head, "attempt": attempt, "run": run}
        self.mode, self.check = mode, check

    def started(self):
        return Started(
            **self.voice,
            model="m",
            engine="simulated",
            queue_ms=1.0,
            received_at=NOW_US,
            delivery=Delivery(mode=self.mode),
            deadlines=Deadlines(),
            output_check=self.check,
        )

    def chunks(self, pieces):
        start, events = 0, []
        for seq, piece in enumerate(pieces):
            events.append(Chunk(**self.voice, seq=seq, start=start, text=piece))
            start += len(piece)
        return events

    def finished(self, last_seq):
        return Finished(**self.voice, last_seq=last_seq, finish_reason="stop")

    def failed(self, last_seq):
        return Failed(**self.voice, last_seq=last_seq, error_class="timeout", message="", retryable=True)

    def verdict(self, decision="allow", delivery=None):
        return Verdict(**self.head, decision=decision, policy_version="v", delivery=delivery)

    def closed(self, outcome="completed", cause=None, **seen):
        return Closed(**self.head, outcome=outcome, cause=cause, **seen)

    def whole(self, pieces):
        return [self.started(), *self.chunks(pieces), self.finished(len(pieces) - 1)]


def pieces(text, rng, longest=9):
    """Cut the text into pieces of random length, at most ``longest`` characters."""
    cut, at = [], 0
    while at < len(text):
        size = rng.randint(1, longest)
        cut.append(text[at : at + size])
        at += size
    return cut


def whole_window(look):
    """Return one finding that covers the whole window if its text contains "rude word". Otherwise return no finding.

    Such a finding also comes from a NeMo rail that blocks a window and does not name the forbidden part.
    """
    return (FoundSpan("nemo/rude", "rail", 0, len(look.text)),) if "rude word" in look.text else ()


def honest(look):
    """Check the text of ``look``, which is a check request, and return the outcome.

    Tier 1 finds the words of ``look.policy.folded``, even if they are disguised. If the text contains "rude word",
    tier 1 also returns a finding that covers the whole text. Tier 2 finds "second thoughts".
    """
    if look.tier == 2:
        found = re.finditer("second thoughts", look.text)
        return CheckResult(tuple(FoundSpan("classifier/doubt", "email", *match.span()) for match in found))
    return CheckResult(tuple(FoundSpan(*match) for match in look.policy.folded.find(look.text)) + whole_window(look))


@dataclass
class World:
    """The log of one partition, and a simulated safety service that reads and writes it.

    Attributes:
        check: Function that takes a check request and returns the outcome of the check.
        written: Number of events that safety has written.
    """

    policy: object
    rng: random.Random
    check: object = honest
    log: list = field(default_factory=list)
    written: int = 0

    def run(self, events, *, pace=1, crashes=(), moves=(), patience=1.0):
        """Append the events one by one, and let safety read them. Return all recalls and clearances on the log.

        Args:
            events: The events of other writers, in log order.
            pace: Maximum number of events that are read before each step of safety.
            crashes: When the number of events that safety has written reaches one of these numbers, its process dies
                and a new one starts. Decisions that were not written yet are lost.
            moves: When the number of events that safety has written reaches one of these numbers, its partition is
                taken away and given back. Decisions that were not written yet are lost.
            patience: Probability that a check is answered before the next step. Below 1, checks are answered in random
                order.
        """
        events, crashes = list(events), sorted(crashes)
        while not _Life(self, pace, patience, sorted(moves)).live(events, crashes):
            pass
        return self.said

    @property
    def said(self):
        return [event for event in self.log if isinstance(event, Cleared | Recall)]


class _Life:
    """One safety process, from the assignment of its partition to its end."""

    def __init__(self, world, pace, patience, moves):
        self.world, self.pace, self.patience, self.moves = world, pace, patience, moves
        self.core, self.looks = SafetyCore(world.policy, "safety/t"), []
        self.gain()

    def gain(self):
        self.core.gained(0)
        self.read, self.until = 0, len(self.world.log)
        self.effects = [] if self.until else self.core.caught_up(0, NOW_US, NOW_US)

    def live(self, events, crashes):
        """Run the process until it has processed all events, and return True. If it crashes before, return False."""
        while True:
            if crashes and self.world.written >= crashes[0]:
                crashes.pop(0)
                return False
            if self.moves and self.world.written >= self.moves[0]:
                self.moves.pop(0)
                self.core.lost(0)
                self.gain()
            self.take(events)
            self.think()
            while self.effects and not (crashes and self.world.written >= crashes[0]):
                self.perform(self.effects.pop(0))
            idle = not (self.effects or self.looks or events or self.core.busy)
            if idle and self.read == len(self.world.log):
                return True

    def take(self, events):
        for _ in range(self.world.rng.randint(1, self.pace)):
            if self.read == len(self.world.log) and events:
                self.world.log.append(events.pop(0))
            if self.read < len(self.world.log):
                self.core.read(record(self.world.log[self.read]), NOW_US, NOW_US)
                self.read += 1
                if self.read == self.until:
                    self.effects += self.core.caught_up(0, NOW_US, NOW_US)

    def think(self):
        rng = self.world.rng
        while self.core.busy and rng.random() < 0.9:
            self.effects += self.core.step(NOW_US)
        if self.patience < 1:
            rng.shuffle(self.looks)
        while self.looks and rng.random() < self.patience:
            look = self.looks.pop(0)
            self.effects += self.core.take_outcome(look, self.world.check(look), NOW_US)

    def perform(self, effect):
        if isinstance(effect, CheckRequest):
            self.looks.append(effect)
        else:
            assert isinstance(effect, Write)
            self.world.log.append(effect.event)
            self.world.written += 1


def as_set(said):
    """Return the clearances and recalls as a set of tuples, without the times and sources of the events."""
    return {
        (event.request_id, event.attempt, event.run, event.seq, event.final)
        if isinstance(event, Cleared)
        else (event.request_id, event.attempt, event.run, event.recall_id, event.start, event.end, event.action,
              event.replacement, event.rule, event.category, event.policy_version)
        for event in said
    }  # fmt: skip


def recalls(said):
    """Return the span, action, rule and category of each ``Recall`` among the events ``said``."""
    return {(e.start, e.end, e.action, e.rule, e.category) for e in said if isinstance(e, Recall)}


def clearances(said):
    return [(event.seq, event.final) for event in said if isinstance(event, Cleared)]


def broken(_):
    return Unchecked("it always breaks")
