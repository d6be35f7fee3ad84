"""The windows of one run's text that one tier checks.

Windows end at absolute offsets, so neither chunks nor load move them. Outcomes count in the order of these offsets,
whenever they arrive. Pure.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from services.policy.source.document import WindowSpec
from services.safety.decide.check_types import CheckOutcome, Tier


def next_offset(position: int, windows: WindowSpec) -> int:
    """Return the next window's end: ``first_chars``, doubled up to the stride, then multiples of the stride."""
    if position >= windows.stride_chars:
        return (position // windows.stride_chars + 1) * windows.stride_chars
    offset = windows.first_chars
    while offset <= position:
        offset *= 2
    return min(offset, windows.stride_chars)


@dataclass(slots=True)
class PendingCheck:
    """A check that is not counted yet.

    Attributes:
        number: The number of its ``CheckRequest``.
        start: Where its window begins.
        end: Where its window ends.
        last: Whether the text ends with the window.
        clears: The last chunk that it clears if nothing stops the answer; None for no further chunk.
        after: How many checks of tier 2 must have passed before this check clears text.
    """

    number: int
    start: int
    end: int
    last: bool
    clears: int | None = None
    after: int = 0
    outcome: CheckOutcome | None = None


class WindowTracker:
    """The windows of one tier.

    Attributes:
        tier: 1 or 2.
        windows: The ends and lengths of the windows.
        next: The end of the next window.
        reached: The end of the newest window.
        asked: How many windows were due so far.
        passed: How many windows were counted, in order, and did not stop the answer.
        stopped: Whether the answer was stopped, so that no further check is requested or counted.
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
        """Note that a window is due. Return whether to check it."""
        self.asked += 1
        self.reached = pending.end
        self.next = next_offset(pending.end, self.windows)
        if not self.stopped:
            self._pending.append(pending)
        return not self.stopped

    def take_outcome(self, number: int, outcome: CheckOutcome) -> None:
        """Note the outcome of a check that is still pending."""
        for pending in self._pending:
            if pending.number == number:
                pending.outcome = outcome
                return

    def oldest(self) -> PendingCheck | None:
        """Return the check that is counted next."""
        return self._pending[0] if self._pending else None

    def countable(self) -> Iterator[PendingCheck]:
        """Yield the checks that may be counted now, in order. The caller sets ``stopped`` if one stops the answer."""
        while self._pending and self._pending[0].outcome is not None:
            yield self._pending.popleft()
            if self.stopped:
                self._pending.clear()
                return
            self.passed += 1

    def unrecalled(self, rule: str, start: int, end: int) -> tuple[int, int]:
        """Return the part of a window not yet recalled for this rule. Windows overlap, but their recalls must not."""
        start = max(start, self._recalled.get(rule, 0))
        self._recalled[rule] = max(end, self._recalled.get(rule, 0))
        return start, end
