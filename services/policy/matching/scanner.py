"""One text, looked through while it arrives. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from services.policy.matching.machine import BEGINS, END, ENDS, OTHER, Config, Machine, Rule
from services.policy.validators import VALIDATORS

_TAIL_KEPT: Final = 2_048
"""Text kept for validators before it is trimmed to what is undecided; more than any rule's longest match (512)."""


@dataclass(frozen=True, slots=True)
class Match:
    """Something that was found.

    Attributes:
        rule: Which rule.
        start: First code point of the span in the whole text.
        end: One past the last.
    """

    rule: Rule
    start: int
    end: int


class Scanner:
    """The state of one text: the places where a match may have begun.

    Args:
        machine: The rules.
        prompt: Indexes of rules whose match is taken at its shortest, as soon as it is known.

    Attributes:
        position: How many code points were read.
    """

    __slots__ = (
        "_config",
        "_machine",
        "_prompt",
        "_resolved",
        "_starts",
        "_tail",
        "_tail_start",
        "_waiting",
        "position",
    )

    def __init__(self, machine: Machine, prompt: Collection[int] = ()) -> None:
        self.position = 0
        self._machine = machine
        self._prompt = prompt
        self._config = machine.config(OTHER, ())
        self._starts: list[int] = []  # of the configuration's states, ascending; at most the longest match's length
        self._waiting: dict[tuple[int, int], int] = {}  # (start, rule) -> longest end so far
        self._resolved: dict[int, int] = {}  # rule -> end of its last match
        self._tail = ""
        self._tail_start = 0

    @property
    def undecided(self) -> int:
        """First code point whose matches are not all known: text before it is decided for good.

        What is waiting waits for a match that began there or earlier, so it needs no look of its own.
        """
        return self._starts[0] if self._starts else self.position

    def feed(self, text: str) -> list[Match]:
        """Read more text; returns the matches that are now certain, in the order in which they became so."""
        self._tail += text
        config, starts, waiting = self._config, self._starts, self._waiting
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
                    self._complete(starts[index], rules, position, found)
                if kept is not None:
                    starts[:] = [starts[index] for index in kept]
                if begun:
                    starts.append(position)
            if waiting:
                self._settle(config, found)
        self._config = config
        self.position += len(text)
        if len(self._tail) > _TAIL_KEPT:
            self._trim()
        return found

    def finish(self) -> list[Match]:
        """The text is over; returns the remaining matches."""
        found: list[Match] = []
        for start, state in zip(self._starts, self._config.states, strict=True):
            if state.final is not None:
                self._complete(start, state.final[END], self.position, found)
        self._starts.clear()
        self._config = self._machine.config(OTHER, ())
        self._settle(self._config, found)
        return found

    def _complete(self, start: int, rules: tuple[int, ...], end: int, found: list[Match]) -> None:
        """These rules match from ``start`` to ``end``, if their validators agree."""
        text = self._tail[start - self._tail_start : end - self._tail_start]
        for rule in rules:
            if start < self._resolved.get(rule, 0):
                continue
            validator = self._machine.rules[rule].validator
            if validator is not None and not VALIDATORS[validator](text):
                continue
            if rule in self._prompt:
                self._take(rule, start, end, found)
            else:
                self._waiting[start, rule] = end

    def _settle(self, config: Config, found: list[Match]) -> None:
        """Take what is waiting and can neither grow nor be preceded by an earlier start of the same rule."""
        for (start, rule), end in sorted(self._waiting.items()):
            if start < self._resolved.get(rule, 0):
                del self._waiting[start, rule]
            elif not self._may_match(config, rule, start):
                del self._waiting[start, rule]
                self._take(rule, start, end, found)

    def _may_match(self, config: Config, rule: int, start: int) -> bool:
        """Whether a match of the rule that began here or earlier is still open."""
        return any(
            begun <= start and rule in state.alive for begun, state in zip(self._starts, config.states, strict=True)
        )

    def _take(self, rule: int, start: int, end: int, found: list[Match]) -> None:
        self._resolved[rule] = end
        found.append(Match(self._machine.rules[rule], start, end))

    def _trim(self) -> None:
        keep = self._starts[0] if self._starts else self.position
        self._tail = self._tail[keep - self._tail_start :]
        self._tail_start = keep


def find_all(machine: Machine, text: str) -> list[Match]:
    """Every match in a whole text, by start."""
    scanner = Scanner(machine)
    found = scanner.feed(text)
    found.extend(scanner.finish())
    return sorted(found, key=lambda match: (match.start, match.end, match.rule.name))
