"""Convert patterns to Glushkov automata.

In a pattern, a position is a place that matches one character. The pattern ``a[bc]d`` has three positions.
"""

from dataclasses import dataclass, field
from typing import Final

from services.policy.matching.charset import CharSet
from services.policy.matching.regex import Alternation, BadPattern, Chars, Concatenation, Node, Repeat

MAX_POSITIONS: Final = 4_096
"""Maximum number of positions of a pattern that has repeats. Repeats copy positions; nested repeats multiply them."""


PositionSets = tuple[bool, set[int], set[int]]
"""What is known of a node of a pattern's syntax tree.

Whether it matches the empty text, the positions where its match may begin, and those where its match may end.
"""


@dataclass(slots=True)
class Positions:
    chars: list[CharSet] = field(default_factory=list)  # by position: a place of a pattern that reads one character
    follow: list[set[int]] = field(default_factory=list)
    _begun: int = 0

    def add(self, node: Node) -> tuple[set[int], set[int]]:
        """Add a pattern. Return the positions with which a match may begin, and those with which a match may end.

        Raises:
            BadPattern: The pattern matches the empty text, or it has too many positions because of repeats, such as
                ``(a{99}){99}``.
        """
        self._begun = len(self.chars)
        nullable, first, last = self._part(node)
        if nullable:
            raise BadPattern("it matches the empty text; at least one character must be required")
        return first, last

    def _part(self, node: Node) -> PositionSets:
        match node:
            case Chars(chars):
                self.chars.append(chars)
                self.follow.append(set())
                place = {len(self.chars) - 1}
                return False, place, place
            case Concatenation(parts):
                return self._sequence(parts)
            case Alternation(options):
                done = [self._part(option) for option in options]
                nullables, firsts, lasts = zip(*done, strict=True)
                return any(nullables), set().union(*firsts), set().union(*lasts)
            case Repeat(part, least, most):
                return self._repeat(part, least, most)

    def _sequence(self, parts: tuple[Node, ...]) -> PositionSets:
        nullable, first, last = True, set[int](), set[int]()
        for part in parts:
            nullable, first, last = self._join((nullable, first, last), self._part(part))
        return nullable, first, last

    def _repeat(self, part: Node, least: int, most: int) -> PositionSets:
        # ``x{2,4}`` becomes ``xx(x(x)?)?``, so that each copy is followed only by the next copy.
        tail: PositionSets = (True, set(), set())
        for _ in range(most - least):
            _nullable, first, last = self._join(self._copy(part), tail)
            tail = (True, first, last)
        for _ in range(least):
            tail = self._join(self._copy(part), tail)
        return tail

    def _copy(self, part: Node) -> PositionSets:
        if len(self.chars) - self._begun > MAX_POSITIONS:
            raise BadPattern(f"its repeats multiply to more than {MAX_POSITIONS} places; lower their bounds")
        return self._part(part)

    def _join(self, left: PositionSets, right: PositionSets) -> PositionSets:
        for place in left[2]:
            self.follow[place] |= right[1]
        first = left[1] | right[1] if left[0] else left[1]
        last = left[2] | right[2] if right[0] else right[2]
        return left[0] and right[0], first, last
