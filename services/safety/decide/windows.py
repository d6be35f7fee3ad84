"""The windows of one run's text that one tier checks.

Windows end at absolute offsets, which depend neither on chunks nor on load. Outcomes are processed in the order of
these offsets, in whatever order they arrive. No I/O.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from services.policy.source.document import WindowSpec
from services.safety.decide.check_types import CheckOutcome, Tier


def next_offset(position: int, windows: WindowSpec) -> int:
    """Return the end of the first window that ends after ``position``. ``WindowSpec`` says where windows end."""
    if position >= windows.stride_chars:
        return (position // windows.stride_chars + 1) * windows.stride_chars
    offset = windows.first_chars
    while offset <= position:
        offset *= 2
    return min(offset, windows.stride_chars)


@dataclass(slots=True)
class PendingCheck:
    """A check whose outcome has not been processed yet.

    Attributes:
        number: The number of its ``CheckRequest``.
        start: Offset of the start of its window.
        end: Offset of the end of its window.
        last: Whether the text ends with the window.
        clears: ``seq`` of the last chunk that it clears if nothing stops the answer; None if it clears no chunk.
        after: Number of tier 2 checks that must have passed before this check clears text.
    """

    number: int
    start: int
    end: int
    last: bool
    clears: int | None = None
    after: int = 0
    outcome: CheckOutcome | None = None


class WindowTracker:
    """The windows of one run's text that one tier checks, and the outcomes of their checks.

    Attributes:
        tier: 1 or 2.
        windows: The policy's settings for the ends and the length of windows.
        next: Offset at which the next window ends.
        reached: Offset at which the newest window ended.
        asked: Number of windows that were due so far.
        passed: Number of windows whose outcomes were processed, in order, and did not stop the answer.
        stopped: Whether the answer was stopped. Then no further check is requested, and no outcome processed.
    """

    __slots__ = ("_pending", "_recalled", "asked", "next", "passed", "reached", "stopped", "tier", "windows")

    def __init__(self, tier: Tier, windows: WindowSpec) -> None:
        self.tier: Tier = tier
        self.windows = windows
        self.next = next_offset(0, windows)
        self.reached = 0
        self.asked = 0
        self.passed = 0
        self.stopped = False
        self._pending: deque[PendingCheck] = deque()  # bounded by max_waiting_chars / stride
        self._recalled: dict[str, int] = {}  # by rule, the end of the last whole window recalled for it

    def ask(self, pending: PendingCheck) -> bool:
        """Record that the text has reached the end of a window. Return whether the window must be checked."""
        self.asked += 1
        self.reached = pending.end
        self.next = next_offset(pending.end, self.windows)
        if not self.stopped:
            self._pending.append(pending)
        return not self.stopped

    def take_outcome(self, number: int, outcome: CheckOutcome) -> None:
        """Record the outcome of a check that is still pending."""
        for pending in self._pending:
            if pending.number == number:
                pending.outcome = outcome
                return

    def oldest(self) -> PendingCheck | None:
        """Return the oldest check whose outcome has not been processed; None if there is none."""
        return self._pending[0] if self._pending else None

    def countable(self) -> Iterator[PendingCheck]:
        """Yield the checks to process now, in order. The caller sets ``stopped`` if a check stops the answer."""
        while self._pending and self._pending[0].outcome is not None:
            yield self._pending.popleft()
            if self.stopped:
                self._pending.clear()
                return
            self.passed += 1

    def unrecalled(self, rule: str, start: int, end: int) -> tuple[int, int]:
        """Return the part of a window that this rule has not recalled yet. From now on, the part counts as recalled.

        Windows overlap, but recalls must not.
        """
        start = max(start, self._recalled.get(rule, 0))
        self._recalled[rule] = max(end, self._recalled.get(rule, 0))
        return start, end
