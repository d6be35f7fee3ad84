"""The patterns of a policy as one automaton, determinised while it runs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.policy.document import Guard, Validator
from services.policy.matching import charset
from services.policy.matching.positions import Positions
from services.policy.matching.regex import Node, longest

MAX_REMEMBERED: Final = 2
"""Most matches begun at once for which the configuration is remembered; more are rare, and their combinations many."""

MAX_CELLS: Final = 200_000
"""Table cells kept; at most about 80 MB. Beyond it the table is begun anew: that takes time and changes nothing."""

# What a neighbour is, for the guards. END stands after the text only.
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
    """One pattern, ready to match.

    Attributes:
        name: The rule's name.
        category: What Rego decides by.
        node: Its tree.
        guard: Which neighbours forbid a match.
        validator: A further check.
    """

    name: str
    category: str
    node: Node
    guard: Guard = "none"
    validator: Validator | None = None

    @property
    def max_chars(self) -> int:
        """Longest match."""
        return longest(self.node)


class Kinds(dict[str, int]):
    """Character -> what it is as a neighbour; bounded by Unicode's size and emptied at 65,536 entries."""

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


class State(dict[str, "State | None"]):
    """Where a begun match may be: character -> next state, None when nothing can match any more.

    Attributes:
        final: Neighbour kind -> rules that match if such a character comes next; None when no rule is complete here.
        alive: Rules that are complete here, if the next character lets them, or may be after more characters.
    """

    __slots__ = ("_machine", "_targets", "alive", "final")

    def __init__(self, machine: "Machine", targets: frozenset[int], complete: frozenset[int]) -> None:
        super().__init__()
        self._machine = machine
        self._targets = targets
        self.alive = complete.union(machine.owner[place] for place in targets)
        self.final = machine.final(complete)

    def __missing__(self, char: str) -> "State | None":
        state = self[char] = self._machine.step(self._targets, char)
        return state


class Change(NamedTuple):
    """What a character changes in the list of begun matches.

    Attributes:
        complete: Which of them match if they end before the character, and by which rules.
        kept: Which of them go on; None when all do.
        begun: Whether a match may begin with the character.
    """

    complete: tuple[tuple[int, tuple[int, ...]], ...]
    kept: tuple[int, ...] | None
    begun: bool


# Nearly all changes are one of these two: a word begins that may become a match, and it ends and did not.
BEGINS: Final = Change((), None, begun=True)
ENDS: Final = Change((), (), begun=False)

_COMMON: Final[dict[Change, Change | None]] = {
    Change((), None, begun=False): None,
    BEGINS: BEGINS,
    ENDS: ENDS,
}

Next = tuple["Config", Change | None]


class Config(dict[str, Next]):
    """All begun matches together, and the last character's kind: character -> next one, and what changes by it.

    It is remembered while few matches are open, which is nearly always; then a character costs one look-up.

    Attributes:
        kind: What the last character was as a neighbour.
        states: Of the begun matches, the earliest first.
    """

    __slots__ = ("_machine", "kind", "states")

    def __init__(self, machine: "Machine", kind: int, states: tuple[State, ...]) -> None:
        super().__init__()
        self._machine = machine
        self.kind = kind
        self.states = states

    def __missing__(self, char: str) -> Next:
        step = self._machine.advance(self.kind, self.states, char)
        if len(self.states) <= MAX_REMEMBERED:
            self._machine.remember()
            self[char] = step
        return step


class Machine:
    """Many rules, one table that grows as text is seen. Shared by every scanner of a policy in one thread."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Number the rules' positions.

        Raises:
            BadPattern: A rule cannot be matched.
        """
        self.rules = tuple(rules)
        self.max_chars = max((rule.max_chars for rule in rules), default=0)
        self.kinds = Kinds()
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
        """One more cell is filled; past the bound all are emptied, but for those that scanners still hold."""
        self._cells += 1
        if self._cells > MAX_CELLS:
            self._reset()

    def step(self, targets: frozenset[int], char: str) -> State | None:
        """The state after reading a character where one of these places comes next; None when none reads it."""
        self.remember()
        members = self._members_of(char)
        read = frozenset(place for place in targets if self._set_of[place] in members)
        if not read:
            return None
        state = self._states.get(read)
        if state is None:
            following = frozenset[int]().union(*(self._follow[place] for place in read))
            complete = frozenset(self.owner[place] for place in read & self._ends)
            state = self._states[read] = State(self, following, complete)
        return state

    def config(self, kind: int, states: tuple[State, ...]) -> Config:
        """The configuration of these states after a character of this kind."""
        if len(states) > MAX_REMEMBERED:
            return Config(self, kind, states)
        key = (kind, *map(id, states))
        config = self._configs.get(key)
        if config is None:
            config = self._configs[key] = Config(self, kind, states)
        return config

    def advance(self, before: int, states: tuple[State, ...], char: str) -> Next:
        """Read a character with every begun match."""
        kind = self.kinds[char]
        following = [state[char] for state in states]
        complete = tuple(
            (index, rules)
            for index, state in enumerate(states)
            if state.final is not None and (rules := state.final[kind])
        )
        kept = tuple(index for index, state in enumerate(following) if state is not None)
        begun = self._begins[before][char]
        alive = tuple(state for state in (*following, begun) if state is not None)
        change = Change(complete, None if len(kept) == len(states) else kept, begun is not None)
        following_config = self.config(kind, alive)
        if len(alive) > MAX_REMEMBERED:  # so many are worth a scanner's attention, whatever changes
            return following_config, change
        return following_config, _COMMON.get(change, change)

    def final(self, complete: frozenset[int]) -> tuple[tuple[int, ...], ...] | None:
        """For each kind of next neighbour, which of the complete rules its guard lets match."""
        if not complete:
            return None
        return tuple(
            tuple(rule for rule in sorted(complete) if kind not in _FORBIDDEN_AFTER[self.rules[rule].guard])
            for kind in range(END + 1)
        )

    def _reset(self) -> None:
        self._cells = 0
        self._states: dict[frozenset[int], State] = {}
        self._members: dict[str, frozenset[int]] = {}
        self._begins = tuple(State(self, places, frozenset()) for places in self._places)
        # Keyed by the identity of states, each of which its own configuration keeps alive.
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
    """Distinct sets, and for each position which one it reads."""
    numbers: dict[charset.CharSet, int] = {}
    each = [numbers.setdefault(chars, len(numbers)) for chars in sets]
    return list(numbers), each
