"""One tier's looks at one run's text: asked at absolute offsets, counted in that order whenever they are answered.

Neither chunks nor load move the windows. Pure.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from services.policy.document import Windows
from services.safety.looks import Answer, Tier


def next_offset(position: int, windows: Windows) -> int:
    """The first offset after ``position``: first, 2 x first, 4 x first ... up to the stride, then its multiples."""
    if position >= windows.stride_chars:
        return (position // windows.stride_chars + 1) * windows.stride_chars
    offset = windows.first_chars
    while offset <= position:
        offset *= 2
    return min(offset, windows.stride_chars)


@dataclass(slots=True)
class Pending:
    """A look that is not counted yet.

    Attributes:
        number: As in the question.
        start: Where its window begins.
        end: Where its window ends.
        last: The text ends with it.
        clears: The chunk that is cleared when nothing stops; None when the look completes none.
        after: How many looks of tier 2 must be counted before it.
        answer: What the check said, once it did.
    """

    number: int
    start: int
    end: int
    last: bool
    clears: int | None = None
    after: int = 0
    answer: Answer | None = None


class Lookout:
    """One tier's looks.

    Attributes:
        tier: 1 or 2.
        windows: When it looks, and at how much.
        next: The offset of the next look.
        reached: The offset of the last one.
        asked: How many looks were due.
        passed: How many of the first ones were counted and did not stop.
        shut: Something stopped: nothing more is asked or counted.
    """

    __slots__ = ("_pending", "_recalled", "asked", "next", "passed", "reached", "shut", "tier", "windows")

    def __init__(self, tier: Tier, windows: Windows) -> None:
        self.tier: Tier = tier
        self.windows = windows
        self.next = next_offset(0, windows)
        self.reached = 0
        self.asked = 0
        self.passed = 0
        self.shut = False
        self._pending: deque[Pending] = deque()  # bounded by max_waiting_chars / stride
        self._recalled: dict[str, int] = {}  # rule -> end of the last whole window recalled for it

    def ask(self, pending: Pending) -> bool:
        """Note that a look is due. Returns whether it is to be asked for at all."""
        self.asked += 1
        self.reached = pending.end
        self.next = next_offset(pending.end, self.windows)
        if not self.shut:
            self._pending.append(pending)
        return not self.shut

    def answer(self, number: int, answer: Answer) -> None:
        """Note an answer; one for a look that is not waited for is ignored."""
        for pending in self._pending:
            if pending.number == number:
                pending.answer = answer
                return

    def oldest(self) -> Pending | None:
        """The look that is counted next."""
        return self._pending[0] if self._pending else None

    def answered(self) -> Iterator[Pending]:
        """The looks that may be counted now, in order; whoever counts one that stops sets ``shut``."""
        while self._pending and self._pending[0].answer is not None:
            yield self._pending.popleft()
            if self.shut:
                self._pending.clear()
                return
            self.passed += 1

    def unrecalled(self, rule: str, start: int, end: int) -> tuple[int, int]:
        """What of a whole window was not recalled for this rule yet: windows overlap, their recalls must not."""
        start = max(start, self._recalled.get(rule, 0))
        self._recalled[rule] = max(end, self._recalled.get(rule, 0))
        return start, end
