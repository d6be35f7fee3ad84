"""Test many requests in which attempt 1 sends its first token up to 20 ms before or after the deadline.

The text of exactly one attempt is shown. If there is another attempt, it stops. This is tested with both kinds of
fallback ("cancel" and "race"). A random delay passes until an event is on the log, and another random delay until the
router reads the event. So the router sees the first token sometimes before and sometimes after the deadline.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from schemas.base import AnyEvent
from schemas.requests import Deadlines, Request
from schemas.side_events import Account, Cancel
from schemas.stream import Closed, Cutover, StreamEvent
from schemas.topics import REQUESTS_VERTEX, Topic
from services.bus import Received
from services.router.config import FallbackLimits, RouterConfig
from services.router.core import RouterCore
from services.stream import Restart, Screen, Show, apply
from tests.support.examples import examples
from tests.unit.router.world import (
    MS,
    T0,
    chunk,
    failed,
    finished,
    next_alarm_us,
    request,
    request_id,
    started,
    tick,
    topic_of,
)

TTFT_MS, LOSER_MS, TIMES = 200, 50, max(15, examples(50))
OFFSETS = range(-20, 21)
EVERY_MS = 3.0
"""Time between two requests, in milliseconds."""


class Sim:
    """A simulation of a router, a log, and workers that obey a ``Cancel`` two milliseconds after it is on the log."""

    def __init__(self, seed: int) -> None:
        policy = RouterConfig(fallback="vertex", breaker_trip=0, limits=FallbackLimits(ratio=1, free=1_000_000))
        self.router = RouterCore(policy, "router/0", 1)
        self.router.gained(0)
        self.router.caught_up(0, T0, T0)
        self.dice = random.Random(seed)
        self.logs: dict[str, list[tuple[float, AnyEvent]]] = {}
        self.stopped: set[tuple[str, int]] = set()
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        self._sent: dict[str, float] = {}
        self._read: dict[str, float] = {}

    def at(self, ms: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._heap, (ms, next(self._numbers), act))

    def run(self) -> None:
        while self._heap:
            ms, _, act = heapq.heappop(self._heap)
            while (alarm_us := next_alarm_us(self.router, 1)) is not None and alarm_us <= T0 + ms * MS:
                alarm_ms = max((alarm_us - T0) / MS, 0)
                self.write(tick(self.router, alarm_us, 1), alarm_ms)
            act(ms)

    def say(self, ms: float, event: AnyEvent, topic: Topic | None = None) -> None:
        """Write an event at the time ``ms``. The event reaches its topic after a random delay.

        Events of the same topic arrive in the order in which they were written.
        """
        name = (topic or topic_of(event)).name
        self._sent[name] = max(self._sent.get(name, 0), ms + self.dice.uniform(0.2, 4))
        self.at(self._sent[name], lambda at_ms: self._stands(at_ms, name, event))

    def write(self, writes: Any, ms: float) -> None:
        for write in writes:
            self.say(ms, write.event, write.topic)

    def worker(self, rid: str, attempt: int, words: list[tuple[float, AnyEvent]]) -> None:
        """Let a worker write the events in ``words``, each at its time in milliseconds.

        After a cancel, the worker writes one ``Failed`` (cancelled) instead of the remaining events.
        """
        told = [False]

        def one(event: AnyEvent) -> Callable[[float], None]:
            def act(ms: float) -> None:
                if (rid, attempt) not in self.stopped:
                    self.say(ms, event)
                elif not told[0]:
                    told[0] = True
                    self.say(ms, failed(rid, ms, attempt, run=f"r{attempt}", error_class="cancelled"))

            return act

        for ms, event in words:
            self.at(ms, one(event))

    def _stands(self, ms: float, name: str, event: Any) -> None:
        self.logs.setdefault(event.request_id, []).append((ms, event))
        if isinstance(event, Cancel):
            attempts = (1, 2) if event.attempt is None else (event.attempt,)
            for attempt in attempts:
                self.at(ms + 2, lambda _, a=attempt: self.stopped.add((event.request_id, a)))  # type: ignore[misc]
        if name == REQUESTS_VERTEX.name:
            self.worker(event.request_id, 2, _words(event.request_id, 2, ms + 3, ms + self.dice.uniform(5, 33)))
        self._read[name] = max(self._read.get(name, 0), ms + self.dice.uniform(0.2, 4))
        self.at(self._read[name], lambda at_ms: self._reads(at_ms, name, event))

    def _reads(self, ms: float, name: str, event: AnyEvent) -> None:
        now_us = T0 + int(ms * MS)
        record = Received(name, 0, 0, now_us // 1_000, event, None)
        self.write(self.router.read(record, now_us, now_us), ms)


def _words(rid: str, attempt: int, start_ms: float, first_ms: float) -> list[tuple[float, AnyEvent]]:
    run = f"r{attempt}"
    words: list[tuple[float, AnyEvent]] = [(start_ms, started(rid, start_ms, attempt, run))]
    words += [(first_ms + 10 * n, chunk(n, rid, first_ms + 10 * n, attempt, run)) for n in range(4)]
    return [*words, (first_ms + 45, finished(3, rid, first_ms + 45, attempt, run))]


@pytest.mark.parametrize("how", ["cancel", "race"])
def test_late_losers(how: str) -> None:
    sim = Sim(7)
    offsets = [offset for offset in OFFSETS for _ in range(TIMES)]
    sim.dice.shuffle(offsets)
    asked: dict[str, int] = {}
    for number, offset in enumerate(offsets):
        ms = number * EVERY_MS
        rid = request_id(number)
        event = request(rid, ms, fallback=how, deadlines=Deadlines(ttft_ms=TTFT_MS, total_ms=5_000))
        asked[rid] = offset
        sim.at(ms, lambda at_ms, event=event: sim.say(at_ms, event))  # type: ignore[misc]
        sim.worker(rid, 1, _words(rid, 1, ms + 5, ms + TTFT_MS + offset))
    sim.run()
    voices = {_check(sim.logs[rid], rid) for rid in asked}
    assert voices == {1, 2}
    assert _voices(sim, asked, OFFSETS[0]) == {1}
    if how == "cancel":
        assert _voices(sim, asked, OFFSETS[-1]) == {2}


def _voices(sim: Sim, asked: dict[str, int], offset: int) -> set[int]:
    return {_check(sim.logs[rid], rid) for rid, its in asked.items() if its == offset}


def _check(log: list[tuple[float, Any]], rid: str) -> int:
    """Check that a request is completed once, and that the whole text of exactly one attempt is shown.

    If there were two attempts, also check that the one whose text is not shown stopped in time. Return the number of
    the attempt whose text is shown.
    """
    screen, shown, heard, retracted = Screen(rid), "", "", 0
    lost: dict[int, float] = {}
    for ms, event in log:
        if not isinstance(event, StreamEvent):
            continue
        before = screen.candidates
        for op in screen.feed(event):
            retracted += isinstance(op, Restart) and shown != ""
            heard += op.text if isinstance(op, Show) else ""
            shown = apply(shown, op)
        lost |= dict.fromkeys(before - screen.candidates, ms)
    stops = {event.attempt: ms for ms, event in log if isinstance(event, Cancel)}
    ended = {event.attempt: ms for ms, event in log if type(event).__name__ in {"Finished", "Failed"}}
    assert shown == heard == "abc" * 4, "one voice, all of it"
    assert retracted == 0
    assert [type(event) for _, event in log].count(Account) == 1
    assert [event.outcome for _, event in log if isinstance(event, Closed)] == ["completed"]
    cuts = [event for _, event in log if isinstance(event, Cutover)]
    assert len(cuts) <= 1
    for attempt, ms in lost.items():
        assert stops.get(attempt, ended.get(attempt, ms + 1_000)) - ms <= LOSER_MS
    if screen.attempts == 1:  # void, or never written: it brought about nothing
        assert stops == {}
    asked_cloud = [event for _, event in log if isinstance(event, Request) and event.attempt == 2]
    assert len(asked_cloud) == screen.attempts - 1
    assert screen.voice is not None
    return screen.voice.attempt
