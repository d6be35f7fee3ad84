"""The effects of faults: how soon open answers continued, and which faults caused a second run of an attempt."""

import math
import time
from collections import Counter, defaultdict
from typing import NamedTuple

AFTER_S = 30.0
"""A fault is blamed for a second run of an attempt that begins at most this many seconds after the fault's end."""


class Fault:
    """A fault, and how soon the answers that were open at its beginning continued.

    Attributes:
        at: When the fault began, in seconds of the monotonic clock.
        at_ms: When the fault began, in milliseconds of the wall clock, which is also the broker's clock here.
        over_ms: When everything worked again after the fault. None until then.
        open: Number of requests that were open when the fault began, and have not continued since. A request continues
            when its client receives an op or the end.
        last_s: Seconds from the fault's beginning until the most recent time at which a request that was open at the
            beginning continued. None if no such request has continued.
    """

    def __init__(self, kind, readers):
        self.kind, self.at, self.at_ms = kind, time.monotonic(), time.time() * 1_000
        self.over_ms = None
        waiting = [reader for reader in readers if reader.over is None]  # its connection may outlast an answer
        self.open = len(waiting)
        self.last_s = None
        for reader in waiting:
            reader.waits_for.append(self)

    def recovered(self, now):
        self.open -= 1
        self.last_s = now - self.at

    def over(self):
        self.over_ms = time.time() * 1_000

    def covers(self, at_ms):
        return self.at_ms <= at_ms <= (self.over_ms or math.inf) + AFTER_S * 1_000


class Recovery(NamedTuple):
    """How soon open answers continued after faults of one kind.

    Attributes:
        times: Number of faults.
        never: Number of faults after which at least one open answer did not continue.
        p50_s, p99_s, longest_s: Median, p99 and maximum of the faults' recovery times, in seconds. A recovery time
            begins with the fault, and ends when all answers that were open at the beginning have continued. If one of
            these answers did not continue, the recovery time is infinite. The three attributes are None if no answer
            was open at any fault.
    """

    kind: str
    times: int
    never: int
    p50_s: float | None
    p99_s: float | None
    longest_s: float | None


def recovery(faults):
    """Return a ``Recovery`` for each kind of fault.

    Faults that began while no answer was open are left out of ``p50_s``, ``p99_s`` and ``longest_s``.
    """
    by_kind = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    rows = []
    for kind, same in sorted(by_kind.items()):
        never = sum(fault.open > 0 for fault in same)
        times = sorted(fault.last_s for fault in same if fault.open <= 0 and fault.last_s is not None)
        times += [math.inf] * never
        rows.append(Recovery(kind, len(same), never, *(_rank(times, share) for share in (0.5, 0.99, 1.0))))
    return rows


def _rank(times, share):
    return times[max(0, math.ceil(len(times) * share) - 1)] if times else None


def blame(double_takes, faults):
    """Count the repeated executions of attempts, by cause.

    If the record that asks for the attempt was written to Kafka more than once, this is the cause. Otherwise, a fault
    of a worker or of Kafka can be the cause, if it was active when the repetition began, or had ended at most
    ``AFTER_S`` seconds before. If there are several such faults, the kind of the one that began last is the cause. If
    there is none, the cause is "no fault".
    """
    found = Counter()
    for double in double_takes:
        if double.written > 1:
            found["its record was written twice"] += 1
            continue
        before = [fault for fault in faults if fault.covers(double.second_ms) and _touches_workers(fault.kind)]
        found[max(before, key=lambda fault: fault.at_ms).kind if before else "no fault"] += 1
    return found


def _touches_workers(kind):
    return any(name in kind for name in ("generator", "vertex", "kafka"))
