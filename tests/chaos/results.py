"""What a round found: answers that ended wrongly, decisions that came late, and the table of them."""

import statistics
from dataclasses import dataclass, field


@dataclass
class RoundResult:
    """Of one round, or of several of one service and fault. Times are seconds.

    Attributes:
        wrong: What must never be; the rest are figures.
        reactions: From a cause on the log to what the service owed.
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
        """Whether the machine was too slow for a fifth of the test's own answers."""
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
    """Adds what members did wrong, prints the round, and gives it back."""
    found.wrong[:0] = lab.trouble  # first: it may explain the rest, and only the first lines are printed
    lab.trouble = []
    print(f"\n{table([found])}", *(f"  {line}" for line in found.wrong[:8]), sep="\n", flush=True)
    return found
