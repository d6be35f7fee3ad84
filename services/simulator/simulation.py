"""Event loop in virtual time. A seed determines all random choices and the order of all actions."""

import hashlib
import random
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

import orjson

MS = 1_000
SECOND = 1_000_000

T0_US = 1_700_000_000 * SECOND
"""The virtual time at which every simulation starts, in microseconds since the epoch."""

Action = Callable[..., None]


class Actor(Protocol):
    undisturbed: bool


class _Nobody:
    undisturbed = True


_NOBODY = _Nobody()

Gate = Callable[..., None]
"""A function that is called with actor, action and arguments instead of a due action, if the actor is disturbed or the
broker is unreachable. It runs the action, keeps it for later, or drops it."""

Planned = tuple[int, int, Action, tuple[Any, ...], Actor, Gate]
"""A planned action: time, order among actions of the same time, action, arguments, actor, gate."""


def _run(_actor: Actor, action: Action, *args: object) -> None:
    action(*args)


class Simulation:
    """Runs actions in the order of their times. Actions of the same time run in the order of scheduling."""

    __slots__ = ("_blocked", "away", "events", "heap", "lines", "next_order", "now_us", "random", "schedule")

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.now_us = T0_US
        self.random = random.Random(f"delays/{seed}").random  # noqa: S311 - a schedule is no secret
        self.events = 0
        self.away = False
        self._blocked: list[tuple[Action, tuple[object, ...]]] = []
        self.lines: list[tuple[int, str, str]] | None = [] if trace else None
        self.schedule: list[tuple[int | str, ...]] = []  # the input of ``digest``
        self.heap: list[Planned] = []
        self.next_order = count(1).__next__  # orders actions of the same time

    def after(self, delay_us: int, action: Action, *args: object) -> None:
        heappush(self.heap, (self.now_us + delay_us, self.next_order(), action, args, _NOBODY, _run))

    def at_broker(self, action: Action, args: tuple[object, ...]) -> None:
        """Run an action at the broker now, or when the broker can be reached again."""
        if self.away:
            self._blocked.append((action, args))
        else:
            action(*args)

    def bring_broker_back(self) -> None:
        self.away = False
        blocked, self._blocked = self._blocked, []
        for action, args in blocked:
            self.after(self.between(1 * MS, 20 * MS), self.at_broker, action, args)

    def between(self, low_us: int, high_us: int) -> int:
        return low_us + int(self.random() * (high_us - low_us))

    def run_until(self, end_us: int) -> None:
        heap, pop = self.heap, heappop
        done = 0
        while heap and heap[0][0] <= end_us:
            self.now_us, _, action, args, actor, gate = pop(heap)
            done += 1
            if actor.undisturbed and not self.away:
                action(*args)
            else:
                gate(actor, action, *args)
        self.now_us = max(self.now_us, end_us)
        self.events += done

    def note(self, lane: str, what: str) -> None:
        """Add ``what`` and the virtual time to ``schedule``, and to the timeline if one is kept.

        ``lane`` is the column of the timeline, such as ``broker``.
        """
        self.schedule.append((self.now_us, lane, what))
        self.trace(lane, what)

    def trace(self, lane: str, what: str) -> None:
        """Add a line to the timeline. Do nothing if no timeline is kept."""
        if self.lines is not None:
            self.lines.append((self.now_us, lane, what))

    @property
    def digest(self) -> str:
        return hashlib.blake2b(orjson.dumps(self.schedule), digest_size=8).hexdigest()
