"""Test ``HeldPartitions``, which stores the next offset of each partition of a reader.

If the reader keeps a partition, its offset stays. If the reader loses a partition, its offset is forgotten.

A waiter has a goal: the offsets up to which some partitions must be read. ``start_at``, ``read`` and ``lower_goals``
return the waiters whose goal is reached. ``assign`` returns the waiters that wait for a lost partition.
"""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.bus.groups.held_partitions import HeldPartitions

ALL = [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
HELD = st.frozensets(st.sampled_from(ALL))


class Members(RuleBasedStateMachine):
    """A Hypothesis state machine that compares ``HeldPartitions`` with a dictionary of next offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.holding: HeldPartitions[int] = HeldPartitions()
        self.model: dict[tuple[str, int], int | None] = {}
        self.goals: dict[int, dict[tuple[str, int], int]] = {}
        self.number = 0

    @rule(held=HELD, anew=HELD)
    def assign(self, held: frozenset[tuple[str, int]], anew: frozenset[tuple[str, int]]) -> None:
        before = set(self.model) - anew
        lost = set(self.model) - (before & held)
        assignment, missed = self.holding.assign(held, anew)
        assert assignment.held == held
        assert assignment.gained == held - before
        assert assignment.lost == lost
        assert set(missed) == {waiter for waiter, goal in self.goals.items() if lost & goal.keys()}
        self.model = {partition: self.model[partition] if partition in before else None for partition in held}
        for waiter in missed:
            del self.goals[waiter]

    @rule(starts=st.dictionaries(st.sampled_from(ALL), st.integers(0, 9)))
    def start_at(self, starts: dict[tuple[str, int], int]) -> None:
        reached = self.holding.start_at(starts)
        for partition, start in starts.items():
            if partition in self.model and self.model[partition] is None:
                self.model[partition] = start
        self.take_out(reached)

    @rule(steps=st.dictionaries(st.sampled_from(ALL), st.integers(1, 5), min_size=1))
    def read(self, steps: dict[tuple[str, int], int]) -> None:
        progress = {p: at + steps[p] for p, at in self.model.items() if at is not None and p in steps}
        reached = self.holding.read(progress)
        self.model.update(progress)
        self.take_out(reached)

    @rule(ends=st.dictionaries(st.sampled_from(ALL), st.integers(0, 20)))
    def set_goal(self, ends: dict[tuple[str, int], int]) -> None:
        goal = {p: end for p, end in ends.items() if p in self.model}
        self.number += 1
        assert self.holding.set_goal(self.number, goal, self.number) == self.there(goal)
        if not self.there(goal):
            self.goals[self.number] = goal

    @invariant()
    def agrees(self) -> None:
        assert self.holding.without_position == {p for p, at in self.model.items() if at is None}
        assert self.holding.positions == {p: at for p, at in self.model.items() if at is not None}
        assert self.holding.lag >= 0

    def take_out(self, reached: list[int]) -> None:
        assert sorted(reached) == [waiter for waiter, goal in sorted(self.goals.items()) if self.there(goal)]
        for waiter in reached:
            del self.goals[waiter]

    def there(self, goal: dict[tuple[str, int], int]) -> bool:
        return all((at := self.model[p]) is not None and at >= end for p, end in goal.items())


TestMembers = Members.TestCase


@given(HELD)
def test_the_first_assignment_is_all_gain(held: frozenset[tuple[str, int]]) -> None:
    assignment, missed = HeldPartitions[int]().assign(held)
    assert (assignment.gained, assignment.lost, missed) == (held, frozenset(), [])


def test_lag_counts_what_is_known_to_be_unread() -> None:
    holding: HeldPartitions[int] = HeldPartitions()
    holding.assign(frozenset(ALL[:2]))
    holding.start_at({ALL[0]: 3, ALL[1]: 0})
    holding.set_goal(1, {ALL[0]: 10, ALL[1]: 0}, 1)
    assert holding.lag == 7
    assert holding.read({ALL[0]: 12}) == [1]
    assert holding.lag == 0


def test_an_end_that_was_reached_tells_when_unread_records_were_appended() -> None:
    """If a reader has reached an end offset, ``read_up_to_us`` returns the time when the reader asked for this offset.

    Every unread record was appended after this time. The time is in microseconds by the reader's clock.
    """
    holding: HeldPartitions[int] = HeldPartitions()
    holding.assign(frozenset(ALL[:2]))
    holding.note_ends({ALL[0]: 5}, 100)
    assert holding.read_up_to_us(ALL[0]) == 0
    holding.start_at({ALL[0]: 5, ALL[1]: 0})
    assert (holding.read_up_to_us(ALL[0]), holding.read_up_to_us(ALL[1])) == (100, 0)
    holding.note_ends({ALL[0]: 7}, 200)
    assert holding.read_up_to_us(ALL[0]) == 100
    holding.read({ALL[0]: 7})
    assert holding.read_up_to_us(ALL[0]) == 200
    holding.note_ends({ALL[0]: 6}, 150)
    assert holding.read_up_to_us(ALL[0]) == 200, "the answer to an earlier request may come later"
    holding.assign(frozenset(ALL[:2]), frozenset(ALL[:1]))
    assert holding.read_up_to_us(ALL[0]) == 0


def test_a_goal_beyond_the_end_that_a_log_has_lost_is_lowered() -> None:
    holding = HeldPartitions[str]()
    holding.assign(frozenset(ALL))
    holding.start_at(dict.fromkeys(ALL, 3))
    assert not holding.set_goal("lost", {ALL[0]: 9, ALL[1]: 3}, asked_us=10)
    assert not holding.set_goal("new", {ALL[0]: 6}, asked_us=30)
    assert not holding.lower_goals({ALL[0]: 3}, asked_us=5)
    assert not holding.lower_goals({ALL[0]: 5, ALL[2]: 0}, asked_us=20)
    assert not holding.read({ALL[0]: 4})
    assert holding.read({ALL[0]: 5}) == ["lost"]
    assert holding.lower_goals({ALL[0]: 5}, asked_us=40) == ["new"]
