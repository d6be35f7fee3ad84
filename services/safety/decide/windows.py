"""The windows in which tier 1 (NeMo rails) or tier 2 (classifiers) checks the text of one run. No I/O."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from services.policy.source.document import WindowSpec
from services.safety.decide.check_types import CheckOutcome, Tier


def next_offset(position: int, windows: WindowSpec) -> int:
    """Return the end of the first window that ends after ``position``."""
    if position >= windows.stride_chars:
        return (position // windows.stride_chars + 1) * windows.stride_chars
    offset = windows.first_chars
    while offset <= position:
        offset *= 2
    return min(offset, windows.stride_chars)


@dataclass(slots=True)
class PendingCheck:
    """A check of one window by tier 1 (NeMo rails) or tier 2 (classifiers). Its outcome is not processed yet.

    ``start`` and ``end`` are offsets in the run's text, in characters.

    Attributes:
        last: Whether the run's text ends with this window.
        previous_end: Offset at which the window before this one ended; 0 if this is the first.
        clears: ``seq`` of the last chunk that can be cleared when this window has passed tier 1. None if there is no
            such chunk, and always None in tier 2.
        required_passes: Number of the run's windows that must have passed tier 2 before the chunks up to ``clears``
            are cleared.
    """

    number: int
    start: int
    end: int
    last: bool
    previous_end: int = 0
    clears: int | None = None
    required_passes: int = 0
    outcome: CheckOutcome | None = None


class WindowTracker:
    """The windows that tier 1 (NeMo rails) or tier 2 (classifiers) checks in one run, and the outcomes of the checks.

    A window is a piece of the run's text that one check reads.

    Attributes:
        next: Offset at which the next window will end.
        reached: Offset at which the newest window ended; 0 if there is no window yet.
        asked: Number of windows given to ``ask`` so far, checked or not.
        passed: Number of windows whose outcome was processed and did not stop the tier.
        stopped: Whether this tier has stopped. It then requests no check and ignores outcomes.
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
        for pending in self._pending:
            if pending.number == number:
                pending.outcome = outcome
                return

    def oldest(self) -> PendingCheck | None:
        return self._pending[0] if self._pending else None

    def countable(self) -> Iterator[PendingCheck]:
        """Remove and yield the checks whose outcomes can be processed now, in the order of their windows.

        If the caller sets ``stopped`` while it processes a check, the remaining checks are dropped.
        """
        while self._pending and self._pending[0].outcome is not None:
            yield self._pending.popleft()
            if self.stopped:
                self._pending.clear()
                return
            self.passed += 1

    def is_whole_elsewhere(self, pending: PendingCheck, start: int, end: int) -> bool:
        """Return whether a finding reaches an end of its window, but lies in the overlap with the neighbouring window.

        The window is that of ``pending``. ``start`` and ``end`` are the offsets of the finding in the run's text. The
        window may have cut the finding off, but the neighbouring window has all of it.
        """
        if start == pending.start > 0:
            return end <= pending.previous_end
        if end == pending.end and not pending.last:
            next_start = next_offset(pending.end, self.windows) - self.windows.context_chars
            return next_start <= 0 or start > next_start
        return False

    def unrecalled(self, rule: str, start: int, end: int) -> tuple[int, int]:
        """Return the part of a window that this rule has not recalled yet, and mark it as recalled."""
        start = max(start, self._recalled.get(rule, 0))
        self._recalled[rule] = max(end, self._recalled.get(rule, 0))
        return start, end
