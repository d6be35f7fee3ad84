"""Choose the change to try next, and decide when the search ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.tuner.decide import Decision, Trial, decide
from services.tuner.experiment import UNCHANGED, Metric, Rules, SettingsChange, Target
from services.tuner.measurements import gain, values

EXHAUSTED: Final = "every change was tried"


@dataclass(frozen=True, slots=True)
class Tried:
    trial: Trial
    decision: Decision


class Search:
    """Hill climbing: each change is measured against the best settings so far.

    If a change is kept, it becomes part of the best settings.

    Args:
        changes: The changes to try, in this order.
        defaults: The default values of the settings.
        targets: The search ends when all targets are met. Without targets, every change is tried.
        budget_s: Seconds after which no further change is tried; None means no limit.
    """

    def __init__(
        self,
        changes: Sequence[SettingsChange],
        *,
        base: Mapping[str, str],
        defaults: Mapping[str, str],
        rules: Rules,
        targets: Sequence[Target] = (),
        budget_s: float | None = None,
    ) -> None:
        self._left = list(changes)
        self._defaults = dict(defaults)
        self._targets = tuple(targets)
        self._budget_s = budget_s
        self.rules = rules
        self.base = dict(base)
        self.best = dict(base)
        self.null: Trial | None = None
        self.tried: list[Tried] = []
        self.skipped: dict[str, str] = {}
        self.skipped_items: dict[str, str] = {}
        self.reached: dict[Metric, float] = {}
        self.stopped = ""

    @property
    def left(self) -> int:
        return len(self._left)

    def next(self, elapsed_s: float) -> SettingsChange | None:
        """Return the change to try next. Return None if the search has ended; ``stopped`` then has the reason."""
        if self.null is None:
            return UNCHANGED
        if self._targets and all(target.is_met(self.reached) for target in self._targets):
            self.stop("all targets are met")
            return None
        while self._left:
            if self._budget_s is not None and elapsed_s >= self._budget_s:
                self.stop(f"the budget of {self._budget_s / 60:.3g} minutes is spent")
                return None
            change = self._left.pop(0)
            if not change.is_in(self._defaults | self.best):
                return change
            self._skip(change, "these are the settings already")
        self.stop(EXHAUSTED)
        return None

    def record(self, trial: Trial) -> Decision | None:
        """Record a trial and return the decision. If the trial compares the baseline with itself, return None."""
        if trial.change is UNCHANGED:
            self.null = trial
            self.reached = values([*trial.before, *trial.after])
            return None
        decision = decide(trial, self.rules)
        self.tried.append(Tried(trial, decision))
        if decision.kept:
            self.best = trial.change.over(self.best)
        if trial.rounds:
            self.reached = values(trial.after if decision.kept else trial.before) or self.reached
        return decision

    def is_disturbed(self) -> bool:
        """Return whether the speeds of two engines with equal settings differed by more than the margin."""
        if self.null is None:
            return False
        found = gain(self.null.rounds, self.rules.objective, self.rules.confidence)
        return found is not None and (found.low > self.rules.margin or found.high < -self.rules.margin)

    def stop(self, reason: str) -> None:
        """End the search. Record ``reason`` for all changes that were not tried."""
        self.stopped = reason
        for change in self._left:
            self._skip(change, reason)
        self._left.clear()

    def _skip(self, change: SettingsChange, reason: str) -> None:
        self.skipped[change.name] = reason
        self.skipped_items[change.item] = f"{change.name}: {reason}"
