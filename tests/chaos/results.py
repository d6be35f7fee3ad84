"""The result of injecting a fault into a service, and a table of such results."""

import statistics
from dataclasses import dataclass, field


@dataclass
class RoundResult:
    """The result of one fault, or the sum over several rounds of the same fault. Times are in seconds.

    Attributes:
        unended: Number of answers without an end.
        visible: Number of answers whose forbidden text was not taken back.
        outcomes: Number of wrong decisions.
        cut: Number of answers that the router wrongly cut over, or wrongly closed as failed, expired or cancelled,
            although the test had written their events in time.
        late: Number of decisions that came too late, or not at all.
        duplicates: Number of events that came more than once.
        excused: Number of answers that ended wrongly, but do not count, because the test or the broker was too slow.
        reactions: Times from an event on the log, or from the waking of a paused router, to the service's reaction.
        wrong: A description of each problem that was found.
    """

    service: str
    fault: str
    rounds: int = 1
    answers: int = 0
    unended: int = 0
    visible: int = 0
    outcomes: int = 0
    cut: int = 0
    late: int = 0
    duplicates: int = 0
    excused: int = 0
    reactions: list = field(default_factory=list)
    wrong: list = field(default_factory=list)

    def add(self, other):
        for name in ("rounds", "answers", "unended", "visible", "outcomes", "cut", "late", "duplicates", "excused"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.reactions += other.reactions
        self.wrong += other.wrong

    @property
    def says_nothing(self):
        """Return whether more than a fifth of the answers are ``excused``.

        Such a result says too little about the service.
        """
        return 5 * self.excused > self.answers

    def row(self):
        times = [f"{statistics.median(self.reactions):.3f}", f"{max(self.reactions):.3f}"] if self.reactions else "--"
        figures = (self.rounds, self.answers, self.unended, self.visible, self.outcomes, self.cut, self.late)
        return [self.service, self.fault, *map(str, (*figures, self.duplicates, self.excused)), *times]


HEAD = "service fault rounds answers unended visible outcome cut late twice excused p50_s max_s".split()  # noqa: SIM905


def table(founds):
    rows = [HEAD, *(found.row() for found in founds)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def conclude(lab, found):
    """Move the lab's ``trouble`` into the result's list ``wrong``. Print the result, and return it."""
    found.wrong[:0] = lab.trouble  # first: it may explain the rest, and only the first lines are printed
    lab.trouble = []
    print(f"\n{table([found])}", *(f"  {line}" for line in found.wrong[:8]), sep="\n", flush=True)
    return found
