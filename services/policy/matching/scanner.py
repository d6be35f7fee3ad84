"""One text, looked through while it arrives."""

from collections.abc import Collection
from dataclasses import dataclass

from services.policy.matching.machine import END, OTHER, Machine, Rule, State
from services.policy.validators import VALIDATORS


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
    """The state of one text: places where a match may have begun, and nothing of the text before them.

    Args:
        machine: The rules.
        prompt: Indexes of rules whose match is taken at its shortest, as soon as it is known.
    """

    __slots__ = ("_kind", "_live", "_machine", "_prompt", "_resolved", "_tail", "_tail_start", "_waiting", "position")

    def __init__(self, machine: Machine, prompt: Collection[int] = ()) -> None:
        self.position = 0
        self._machine = machine
        self._prompt = prompt
        self._live: list[tuple[int, State]] = []  # by start, ascending
        self._waiting: dict[tuple[int, int], int] = {}  # (start, rule) -> longest end so far
        self._resolved: dict[int, int] = {}  # rule -> end of its last match
        self._kind = OTHER
        self._tail = ""
        self._tail_start = 0

    @property
    def undecided(self) -> int:
        """First code point whose matches are not all known: text before it is decided for good."""
        starts = [self._live[0][0]] if self._live else []
        starts.extend(start for start, _ in self._waiting)
        return min(starts, default=self.position)

    def feed(self, text: str) -> list[Match]:
        """Read more text; returns the matches that are now certain, in the order in which they became so."""
        self._tail += text
        machine, live, kind, position = self._machine, self._live, self._kind, self.position
        kinds, starts = machine.kinds, machine.starts
        found: list[Match] = []
        for char in text:
            before, kind = kind, kinds[char]
            if live:
                live = self._advance(live, char, kind, position, found)
            begun = starts[before][char]
            if begun is not None:
                live.append((position, begun))
            position += 1
        self._live, self._kind, self.position = live, kind, position
        self._trim()
        return found

    def finish(self) -> list[Match]:
        """The text is over; returns the remaining matches."""
        found: list[Match] = []
        for start, state in self._live:
            if state.final is not None:
                self._complete(start, state.final[END], self.position, found)
        self._live = []
        self._settle(found)
        return found

    def _advance(
        self, live: list[tuple[int, State]], char: str, kind: int, position: int, found: list[Match]
    ) -> list[tuple[int, State]]:
        still: list[tuple[int, State]] = []
        for start, state in live:
            if state.final is not None and (rules := state.final[kind]):
                self._complete(start, rules, position, found)
            following = state[char]
            if following is not None:
                still.append((start, following))
        if self._waiting:
            self._live = still
            self._settle(found)
        return still

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

    def _settle(self, found: list[Match]) -> None:
        """Take what is waiting and can neither grow nor be preceded by an earlier start of the same rule."""
        for (start, rule), end in sorted(self._waiting.items()):
            if start < self._resolved.get(rule, 0):
                del self._waiting[start, rule]
            elif not any(begun <= start and rule in state.alive for begun, state in self._live):
                del self._waiting[start, rule]
                self._take(rule, start, end, found)

    def _take(self, rule: int, start: int, end: int, found: list[Match]) -> None:
        self._resolved[rule] = end
        found.append(Match(self._machine.rules[rule], start, end))

    def _trim(self) -> None:
        keep = self._live[0][0] if self._live else self.position
        if keep > self._tail_start:
            self._tail = self._tail[keep - self._tail_start :]
            self._tail_start = keep


def find_all(machine: Machine, text: str) -> list[Match]:
    """Every match in a whole text, by start."""
    scanner = Scanner(machine)
    found = scanner.feed(text)
    found.extend(scanner.finish())
    return sorted(found, key=lambda match: (match.start, match.end, match.rule.name))
