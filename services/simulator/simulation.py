"""Virtual time: events in one order, every random choice from the seed, and a hash over the whole schedule."""

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
"""When every run begins, by the broker's clock."""

Action = Callable[..., None]


class Actor(Protocol):
    """Whose action it is.

    Attributes:
        undisturbed: Whether it may run at once as long as the broker answers.
    """

    undisturbed: bool


class _Nobody:
    """Stands for what is no process's action."""

    undisturbed = True


_NOBODY = _Nobody()

Gate = Callable[..., None]
"""Called with the actor, the action and its arguments when something disturbs the actor or the broker is away: it runs
the action, keeps it for later, or drops it."""

Planned = tuple[int, int, Action, tuple[Any, ...], Actor, Gate]
"""When, in which order among what is to be done then, what, with what, by whom, and what decides about it otherwise."""


def _run(_actor: Actor, action: Action, *args: object) -> None:
    action(*args)


class Simulation:
    """Runs actions in the order of their times; those of one time in the order in which they were scheduled.

    The time is the broker's. Hosts have clocks of their own (``hosts.py``).

    Args:
        seed: All random choices follow from it.
        trace: Keep every line of the schedule, for the timeline.

    Attributes:
        away: Whether the broker does not answer.
        heap: What is to be done. The hot paths push to it.
        next_order: Returns the next number of that order.
        schedule: What is part of the schedule's hash, each with its time.
    """

    __slots__ = ("_blocked", "away", "events", "heap", "lines", "next_order", "now_us", "random", "schedule")

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.now_us = T0_US
        self.random = random.Random(f"delays/{seed}").random  # noqa: S311 - a schedule is no secret
        self.events = 0
        self.away = False
        self._blocked: list[tuple[Action, tuple[object, ...]]] = []
        self.lines: list[tuple[int, str, str]] | None = [] if trace else None
        self.schedule: list[tuple[int | str, ...]] = []
        self.heap: list[Planned] = []
        self.next_order = count(1).__next__

    def after(self, delay_us: int, action: Action, *args: object) -> None:
        heappush(self.heap, (self.now_us + delay_us, self.next_order(), action, args, _NOBODY, _run))

    def at_broker(self, action: Action, args: tuple[object, ...]) -> None:
        """Run something at the broker: now, or once it is back."""
        if self.away:
            self._blocked.append((action, args))
        else:
            action(*args)

    def bring_broker_back(self) -> None:
        """Let everything arrive that was on its way while the broker was away."""
        self.away = False
        blocked, self._blocked = self._blocked, []
        for action, args in blocked:
            self.after(self.between(1 * MS, 20 * MS), self.at_broker, action, args)

    def between(self, low_us: int, high_us: int) -> int:
        """Return a random delay."""
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
        """Record something in the schedule's hash and in the timeline."""
        self.count(lane, what)
        self.trace(lane, what)

    def count(self, *what: int | str) -> None:
        """Make something part of the schedule's hash."""
        self.schedule.append((self.now_us, *what))

    def trace(self, lane: str, what: str) -> None:
        """Put a line on the timeline."""
        if self.lines is not None:
            self.lines.append((self.now_us, lane, what))

    @property
    def digest(self) -> str:
        """Return the hash of the schedule so far."""
        return hashlib.blake2b(orjson.dumps(self.schedule), digest_size=8).hexdigest()
