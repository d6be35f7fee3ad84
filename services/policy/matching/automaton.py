"""A deterministic automaton for all patterns of a policy. Its states are built when a text first reaches them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.policy.matching import charset
from services.policy.matching.positions import Positions
from services.policy.matching.regex import Node, longest
from services.policy.source.document import Guard, ValidatorName

# An open match is a match that has started and may still become complete.
MAX_REMEMBERED: Final = 2
"""Maximum number of open matches of a cached ``Config``. Larger ones are rare, but too various to cache."""

MAX_CELLS: Final = 200_000
"""Maximum number of cached table cells, about 80 MB. If there are more, the table is emptied and built again. The
matches do not change."""

# Kinds of a character next to a match, for the guards. END means that no character follows.
OTHER, LETTER, DIGIT, JOINER, END = range(5)

_FORBIDDEN_BEFORE: Final[dict[Guard, frozenset[int]]] = {
    "none": frozenset(),
    "digit": frozenset({DIGIT}),
    "word": frozenset({LETTER, DIGIT}),
    "token": frozenset({LETTER, DIGIT, JOINER}),
    "start": frozenset({LETTER, DIGIT}),
}
_FORBIDDEN_AFTER: Final[dict[Guard, frozenset[int]]] = {
    **_FORBIDDEN_BEFORE,
    "token": frozenset({LETTER, DIGIT}),  # a full stop after a token ends the sentence
    "start": frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A pattern, ready to match.

    Attributes:
        name: The rule's name.
        category: The category of the rule's findings, such as ``email``.
        node: The pattern's syntax tree.
        guard: Which characters may not be next to a match, as in ``PatternSpec``.
        validator: A check that a match must pass, such as a check digit; None if there is no such check.
    """

    name: str
    category: str
    node: Node
    guard: Guard = "none"
    validator: ValidatorName | None = None

    @property
    def max_chars(self) -> int:
        return longest(self.node)


class NeighbourKinds(dict[str, int]):
    """Maps a character to its kind: digit, letter (also ``_``), joiner (``.%+-``) or other."""

    def __missing__(self, char: str) -> int:
        if len(self) >= 65_536:
            self.clear()
        if char.isdecimal():
            kind = DIGIT
        elif char.isalnum() or char == "_":
            kind = LETTER
        else:
            kind = JOINER if char in ".%+-" else OTHER
        self[char] = kind
        return kind


class AutomatonState(dict[str, "AutomatonState | None"]):
    # Maps the next character to the next state, or to None if no match is possible. ``final``: for each kind of the
    # next character, the rules that match if such a character follows; None if no rule matches now. ``alive``: rules
    # that match now or may match after more characters.
    __slots__ = ("_automaton", "_targets", "alive", "final")

    def __init__(self, automaton: "Automaton", targets: frozenset[int], complete: frozenset[int]) -> None:
        super().__init__()
        self._automaton = automaton
        self._targets = targets
        self.alive = complete.union(automaton.owner[place] for place in targets)
        self.final = automaton.final(complete)

    def __missing__(self, char: str) -> "AutomatonState | None":
        state = self[char] = self._automaton.step(self._targets, char)
        return state


class MatchChange(NamedTuple):
    # Indexes of the open matches that end before the character, each with the rules that match.
    complete: tuple[tuple[int, tuple[int, ...]], ...]
    # Indexes of the open matches that continue with the character; None if all continue.
    kept: tuple[int, ...] | None
    # Whether an open match starts with the character.
    begun: bool


# Nearly all changes are one of these two: an open match starts, or all open matches end without a match.
BEGINS: Final = MatchChange((), None, begun=True)
ENDS: Final = MatchChange((), (), begun=False)

_COMMON: Final[dict[MatchChange, MatchChange | None]] = {
    MatchChange((), None, begun=False): None,
    BEGINS: BEGINS,
    ENDS: ENDS,
}

Next = tuple["Config", MatchChange | None]


class Config(dict[str, Next]):
    # Maps the next character to the next ``Config`` and the ``MatchChange``. ``kind`` is the kind of the last
    # character, and ``states`` are the states of the open matches, the earliest match first.
    __slots__ = ("_automaton", "kind", "states")

    def __init__(self, automaton: "Automaton", kind: int, states: tuple[AutomatonState, ...]) -> None:
        super().__init__()
        self._automaton = automaton
        self.kind = kind
        self.states = states

    def __missing__(self, char: str) -> Next:
        step = self._automaton.advance(self.kind, self.states, char)
        # Nearly always, few matches are open. Then the result is cached, and a character costs one look-up.
        if len(self.states) <= MAX_REMEMBERED:
            self._automaton.remember()
            self[char] = step
        return step


class Automaton:
    """The rules of a policy as one automaton. Several scanners may share it, if they run in the same thread."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Build the automaton.

        Raises:
            BadPattern: A rule's pattern matches the empty text, or the pattern is too long when its repeats are written
                out, such as ``(a{99}){99}``.
        """
        self.rules = tuple(rules)
        self.max_chars = max((rule.max_chars for rule in rules), default=0)
        self.kinds = NeighbourKinds()
        positions = Positions()
        ends: set[int] = set()
        firsts: list[set[int]] = []
        self.owner: list[int] = []
        for index, rule in enumerate(rules):
            first, last = positions.add(rule.node)
            firsts.append(first)
            ends |= last
            self.owner.extend([index] * (len(positions.chars) - len(self.owner)))
        self._follow = [frozenset(places) for places in positions.follow]
        self._ends = ends
        self._sets, self._set_of = _interned(positions.chars)
        self._places = [self._begin_places(firsts, kind) for kind in range(END)]
        self._reset()

    def remember(self) -> None:
        # Scanners keep the cells that they are using when the table is emptied.
        self._cells += 1
        if self._cells > MAX_CELLS:
            self._reset()

    def step(self, targets: frozenset[int], char: str) -> AutomatonState | None:
        self.remember()
        members = self._members_of(char)
        read = frozenset(place for place in targets if self._set_of[place] in members)
        if not read:
            return None
        state = self._states.get(read)
        if state is None:
            following = frozenset[int]().union(*(self._follow[place] for place in read))
            complete = frozenset(self.owner[place] for place in read & self._ends)
            state = self._states[read] = AutomatonState(self, following, complete)
        return state

    def config(self, kind: int, states: tuple[AutomatonState, ...]) -> Config:
        if len(states) > MAX_REMEMBERED:
            return Config(self, kind, states)
        key = (kind, *map(id, states))
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = Config(self, kind, states)
        return config

    def advance(self, before: int, states: tuple[AutomatonState, ...], char: str) -> Next:
        kind = self.kinds[char]
        following = [state[char] for state in states]
        # lists, not generators: some texts open a hundred matches at once
        complete = tuple([
            (index, rules)
            for index, state in enumerate(states)
            if state.final is not None and (rules := state.final[kind])
        ])  # fmt: skip
        kept = tuple([index for index, state in enumerate(following) if state is not None])
        begun = self._begins[before][char]
        alive = tuple([state for state in (*following, begun) if state is not None])
        change = MatchChange(complete, None if len(kept) == len(states) else kept, begun is not None)
        following_config = self.config(kind, alive)
        if len(alive) > MAX_REMEMBERED:  # the scanner adds up their cost
            return following_config, change
        return following_config, _COMMON.get(change, change)

    def final(self, complete: frozenset[int]) -> tuple[tuple[int, ...], ...] | None:
        if not complete:
            return None
        return tuple(
            tuple(rule for rule in sorted(complete) if kind not in _FORBIDDEN_AFTER[self.rules[rule].guard])
            for kind in range(END + 1)
        )

    def _reset(self) -> None:
        self._cells = 0
        self._states: dict[frozenset[int], AutomatonState] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._begins = tuple(AutomatonState(self, places, frozenset()) for places in self._places)
        # By the identity of states. A configuration keeps its states alive.
        self._configs: dict[tuple[int, ...], Config] = {}

    def _begin_places(self, firsts: Sequence[set[int]], kind: int) -> frozenset[int]:
        allowed = (
            places for rule, places in zip(self.rules, firsts, strict=True) if kind not in _FORBIDDEN_BEFORE[rule.guard]
        )
        return frozenset[int]().union(*allowed)

    def _members_of(self, char: str) -> frozenset[int]:
        members = self._members.get(char)
        if members is None:
            members = frozenset(index for index, chars in enumerate(self._sets) if charset.contains(chars, char))
            self._members[char] = members
        return members


def _interned(sets: Sequence[charset.CharSet]) -> tuple[list[charset.CharSet], list[int]]:
    numbers: dict[charset.CharSet, int] = {}
    each = [numbers.setdefault(chars, len(numbers)) for chars in sets]
    return list(numbers), each
