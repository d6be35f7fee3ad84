"""Find which of the injected faults make a simulation fail, and draw a timeline of the simulation as plain text."""

import re
from collections.abc import Iterator

from services.simulator.plan import Plan
from services.simulator.simulation import SECOND, T0_US
from services.simulator.tree.units import WorldClasses
from services.simulator.world import World

LANE_CHARS = 14
MOST_LINES = 160

Line = tuple[int, str, str]


def shrink(plan: Plan, promise: str, parts: WorldClasses | None = None) -> Plan:
    """Remove unnecessary faults from ``plan``, one at a time, and return the plan that is left.

    A fault is unnecessary if, even without it, the simulation violates the property that ``promise`` names.
    """
    index = 0
    while index < len(plan.faults):
        smaller = plan.without(index)
        violation = World(smaller, parts).run().violation
        if violation is not None and violation.promise == promise:
            plan, index = smaller, 0
        else:
            index += 1
    return plan


def draw_timeline(lines: list[Line], sentence: str) -> str:
    """Draw ``lines`` as a text timeline, with one column for each process.

    ``X`` marks a fault, and ``!`` marks a violation. ``sentence`` describes the violation. If this description names a
    request, the lines about other requests are left out.
    """
    named = re.search(r"request (\d+)", sentence)
    chosen = [line for line in lines if _matters(line, None if named is None else named[1])]
    lanes = list(dict.fromkeys(lane for _, lane, _ in chosen))
    left_out = len(chosen) - MOST_LINES
    head = [f"{index:>3} {lane}" for index, lane in enumerate(lanes)]
    notes = [f"({left_out} earlier lines are left out)"] if left_out > 0 else []
    return "\n".join(["lanes:", *head, "", *notes, *_rows(chosen[-MOST_LINES:], lanes)])


def _rows(lines: list[Line], lanes: list[str]) -> Iterator[str]:
    for at_us, lane, what in lines:
        mark = "X" if "FAULT" in what else "!" if "VIOLATION" in what else "o"
        columns = "".join(mark if each == lane else "." for each in lanes)
        yield f"{(at_us - T0_US) / SECOND:10.6f} s  {columns}  {lane:{LANE_CHARS}} {what}"


def _matters(line: Line, number: str | None) -> bool:
    _, lane, what = line
    about = re.search(r"#(\d+)", what)
    return about is None or number is None or about[1] == number or lane == "oracle"
