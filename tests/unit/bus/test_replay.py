"""A reader that goes back has caught up exactly when it was read to where the log ended at its assignment."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from services.bus.replay import Replay

P0, P1 = ("t", 0), ("t", 1)


@given(st.integers(0, 50), st.lists(st.integers(1, 5)), st.integers(0, 50))
def test_caught_up_is_told_once_and_in_the_right_moment(start: int, steps: list[int], behind: int) -> None:
    replay = Replay()
    positions = list(accumulate(steps, initial=start))
    told = [replay.place({P0: start}, {P0: start + behind})]
    told += [replay.read({P0: position}) for position in positions[1:]]
    first = next((index for index, position in enumerate(positions) if position >= start + behind), None)
    assert told == [frozenset({P0}) if index == first else frozenset() for index in range(len(positions))]


def test_a_partition_that_stays_goes_on_where_it_was() -> None:
    replay = Replay()
    replay.place({P0: 3, P1: 0}, {P0: 3, P1: 9})
    replay.read({P0: 7, P1: 4})
    assert replay.hold(frozenset({P0})) == {P0: 7}
    assert replay.hold(frozenset({P0, P1})) == {P0: 7}, "what was given away meanwhile begins anew"


def test_progress_of_a_partition_that_is_not_held_is_ignored() -> None:
    replay = Replay()
    replay.place({P0: 0}, {P0: 5})
    assert replay.read({P1: 5}) == frozenset()
    assert replay.hold(frozenset({P0, P1})) == {P0: 0}
