"""What faults did: how long until the answers went on that were open then, and which requests were taken twice."""

import math
import time
from collections import Counter, defaultdict
from typing import NamedTuple

AFTER_S = 30.0
"""A request that is taken twice within this time of a fault's end is put down to it."""


class Fault:
    """One fault, and when each request that was open then went on.

    Attributes:
        at: When it began, by the monotonic clock; ``at_ms`` by the wall clock, which is also the broker's here.
        over_ms: When what was struck was up again; None until then.
        open: Requests that were open when it began, and have neither received anything since nor ended.
        last_s: Seconds until the last of the others had; None where there were none.
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
    """The faults of one kind.

    Attributes:
        times: How often.
        never: How many had an answer that did not go on, and did not end, while anyone watched.
        p50_s, p99_s, longest_s: Seconds until the last open answer went on; infinite for those that did not. None where
            no answer was open.
    """

    kind: str
    times: int
    never: int
    p50_s: float | None
    p99_s: float | None
    longest_s: float | None


def recovery(faults):
    """Return a row for each kind of fault. One without an open answer says nothing of how long recovery takes."""
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
    """Count the requests that were taken twice by the kind of the fault that began last before the second taking."""
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
