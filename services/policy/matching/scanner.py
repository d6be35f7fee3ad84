"""Find matches in one text while the text arrives."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from services.policy.matching.automaton import BEGINS, END, ENDS, MAX_REMEMBERED, OTHER, Automaton, Config, Rule
from services.policy.matching.validators import VALIDATORS, IncrementalValidator
from services.policy.source.document import ValidatorName

_TAIL_KEPT: Final = 2_048
"""If more characters than this are kept for validators, those before the first open match are dropped."""


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a rule.

    Attributes:
        rule: The rule.
        start: Offset of the match's first code point, counted from the start of the whole text.
        end: Offset of the match's last code point, plus one.
    """

    rule: Rule
    start: int
    end: int


_CHECK_WORK: Final = 4
"""Fixed cost of one call of a validator, in look-ups of the automaton's table.

Each character that the validator reads costs one more.
"""


class _Validation:
    __slots__ = ("end", "running")

    def __init__(self, running: IncrementalValidator, start: int) -> None:
        self.running = running
        self.end = start


class Scanner:
    """Scans one text for matches.

    Args:
        automaton: The rules.
        immediate: Indexes of the rules whose shortest match is returned, instead of the longest.

    Attributes:
        position: Number of code points that were read.
        work: Estimated extra cost of the text that was read. The unit is one look-up in the automaton's table. The
            normal cost, one look-up for each character, is not included. The caller may set ``work`` to 0, to measure
            the extra cost of the next call.
    """

    __slots__ = (
        "_automaton",
        "_checks",
        "_config",
        "_immediate",
        "_invalid_before",
        "_resolved",
        "_starts",
        "_tail",
        "_tail_start",
        "_waiting",
        "position",
        "work",
    )

    def __init__(self, automaton: Automaton, immediate: Collection[int] = ()) -> None:
        self.position = 0
        self.work = 0
        self._automaton = automaton
        self._immediate = immediate
        self._config = automaton.config(OTHER, ())
        self._starts: list[int] = []  # starts of the open matches, ascending; at most as many as a match has characters
        self._waiting: dict[int, dict[int, int]] = {}  # by rule and start, the longest end so far; no value is empty
        self._resolved: dict[int, int] = {}  # by rule, the end of its last match
        self._checks: dict[tuple[int, int], _Validation] = {}  # by start and rule
        # By start, the first end that the validator may accept, and the rules for which this holds.
        self._invalid_before: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._tail = ""
        self._tail_start = 0

    @property
    def undecided(self) -> int:
        """An offset in the text. All matches that are still to be returned start there or later."""
        return self._starts[0] if self._starts else self.position

    def feed(self, text: str) -> list[Match]:
        """Read more text, and return the matches that no further text can change."""
        self._tail += text
        config, starts, waiting, invalid = self._config, self._starts, self._waiting, self._invalid_before
        found: list[Match] = []
        for position, char in enumerate(text, self.position):
            config, change = config[char]
            if change is BEGINS:
                starts.append(position)
            elif change is ENDS:
                starts.clear()
            elif change is not None:
                complete, kept, begun = change
                for index, rules in complete:
                    start = starts[index]
                    if start not in invalid or position >= invalid[start][0] or rules != invalid[start][1]:
                        self._complete(start, rules, position, found)
                if kept is not None:
                    starts[:] = [starts[index] for index in kept]
                if begun:
                    starts.append(position)
                if len(starts) > MAX_REMEMBERED:
                    config = self._crowded(config)
            if waiting:
                self._settle(config, found)
        self._config = config
        self.position += len(text)
        if len(self._tail) > _TAIL_KEPT:
            self._trim()
        return found

    def finish(self) -> list[Match]:
        """Tell the scanner that the text has ended, and return the matches that have not been returned yet."""
        found: list[Match] = []
        for start, state in zip(self._starts, self._config.states, strict=True):
            if state.final is not None:
                self._complete(start, state.final[END], self.position, found)
        self._starts.clear()
        self._config = self._automaton.config(OTHER, ())
        self._settle(self._config, found)
        return found

    def _complete(self, start: int, rules: tuple[int, ...], end: int, found: list[Match]) -> None:
        for rule in rules:
            if self._hopeless(rule, start):
                continue
            validator = self._automaton.rules[rule].validator
            if validator is not None and not self._valid(validator, rule, start, end):
                if len(rules) == 1:
                    self._invalid_before[start] = start + self._checks[start, rule].running.least_chars, rules
                continue
            if rule in self._immediate:
                self._take(rule, start, end, found)
            else:
                self._waiting.setdefault(rule, {})[start] = end

    def _hopeless(self, rule: int, start: int) -> bool:
        # A match of the same rule started earlier and ends after ``start``. If it only waits, it may still be dropped,
        # but only for a match that starts even earlier and also ends after ``start``.
        if start < self._resolved.get(rule, 0):
            return True
        waiting = self._waiting.get(rule)
        return waiting is not None and any(begun < start < end for begun, end in waiting.items())

    def _valid(self, validator: ValidatorName, rule: int, start: int, end: int) -> bool:
        check = self._checks.get((start, rule))
        if check is None:
            check = self._checks[start, rule] = _Validation(VALIDATORS[validator](), start)
        self.work += _CHECK_WORK + end - check.end
        text = self._tail[check.end - self._tail_start : end - self._tail_start]
        check.end = end
        return check.running.feed(text)

    def _crowded(self, config: Config) -> Config:
        starts, states = self._starts, config.states
        # Many open matches cost time. Those that cannot be reported any more are dropped.
        self.work += len(starts)
        if self._waiting:
            kept = [
                index
                for index, (start, state) in enumerate(zip(starts, states, strict=True))
                if not all(self._hopeless(rule, start) for rule in state.alive)
            ]
            if len(kept) < len(starts):
                starts[:] = [starts[index] for index in kept]
                config = self._automaton.config(config.kind, tuple(states[index] for index in kept))
        if len(self._checks) > 2 * len(starts):
            self._forget_checks()
        return config

    def _forget_checks(self) -> None:
        still = set(self._starts)
        self._checks = {key: check for key, check in self._checks.items() if key[0] in still}
        for start in self._invalid_before.keys() - still:
            del self._invalid_before[start]

    def _settle(self, config: Config, found: list[Match]) -> None:
        entries = [(start, rule, end) for rule, ends in self._waiting.items() for start, end in ends.items()]
        self.work += len(entries) * (len(self._starts) + 1)
        for start, rule, end in sorted(entries):
            # A waiting match is reported once it can neither grow nor be replaced by an earlier match of the same rule.
            dead = start < self._resolved.get(rule, 0)
            if dead or not self._may_match(config, rule, start):
                ends = self._waiting[rule]
                del ends[start]
                if not ends:
                    del self._waiting[rule]
                if not dead:
                    self._take(rule, start, end, found)

    def _may_match(self, config: Config, rule: int, start: int) -> bool:
        return any(
            begun <= start and rule in state.alive for begun, state in zip(self._starts, config.states, strict=True)
        )

    def _take(self, rule: int, start: int, end: int, found: list[Match]) -> None:
        self._resolved[rule] = end
        found.append(Match(self._automaton.rules[rule], start, end))

    def _trim(self) -> None:
        keep = self._starts[0] if self._starts else self.position
        self._tail = self._tail[keep - self._tail_start :]
        self._tail_start = keep
        if self._checks:
            self._forget_checks()


def find_all(automaton: Automaton, text: str) -> list[Match]:
    """Return all matches in a text, in the order of their starts."""
    scanner = Scanner(automaton)
    found = scanner.feed(text)
    found.extend(scanner.finish())
    return sorted(found, key=lambda match: (match.start, match.end, match.rule.name))
