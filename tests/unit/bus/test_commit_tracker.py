"""Test that the offset to commit never passes unfinished work, and reaches the end when all work is finished."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.bus.groups.commit_tracker import CommitTracker, PartitionProgress


class TrackMachine(RuleBasedStateMachine):
    """A Hypothesis state machine that reads batches with gaps, finishes their records in any order, and rewinds.

    Sometimes it finishes a record twice, or one that was not read.
    """

    @initialize(start=st.integers(0, 50))
    def begin(self, start: int) -> None:
        self.track = PartitionProgress()
        self.open: set[int] = set()
        self.next = start
        self.track.read(start)

    @rule(keep=st.lists(st.booleans(), max_size=6), skipped=st.integers(0, 3))
    def read(self, keep: list[bool], skipped: int) -> None:
        kept = [self.next + i for i, kept in enumerate(keep) if kept]
        self.next += len(keep) + skipped
        self.open.update(kept)
        self.track.read(self.next, kept)

    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        if self.open:
            offset = data.draw(st.sampled_from(sorted(self.open)))
            self.open.discard(offset)
            self.track.done(offset)

    @rule(offset=st.integers(-5, 100))
    def done_without_cause(self, offset: int) -> None:
        if offset not in self.open:
            self.track.done(offset)

    @rule(back=st.integers(1, 10))
    def rewind(self, back: int) -> None:
        first = max(0, self.next - back)
        if first < self.next:
            self.open = {first}
            self.next = first + 1
            self.track.read(self.next, [first])

    @invariant()
    def position_is_first_open_or_the_end(self) -> None:
        if hasattr(self, "track"):
            assert self.track.position == min(self.open, default=self.next)
            assert self.track._open == self.open


TestTrack = TrackMachine.TestCase


@given(st.permutations(range(20)))
def test_position_reaches_the_end_in_any_order(order: list[int]) -> None:
    track = PartitionProgress()
    track.read(20, range(20))
    positions = []
    for offset in order:
        track.done(offset)
        positions.append(track.position)
    assert positions == sorted(positions)
    assert positions[-1] == 20


def test_book_commits_only_what_changed() -> None:
    book = CommitTracker()
    book.read(("t", 0), 5)
    book.read(("t", 1), 3, [1, 2])
    assert book.due() == {("t", 0): 5, ("t", 1): 1}
    book.committed({("t", 0): 5, ("t", 1): 1})
    assert book.due() == {}
    book.done(("t", 1), 1)
    assert book.due() == {("t", 1): 2}


def test_book_forgets_partitions_that_were_taken_away() -> None:
    book = CommitTracker()
    book.read(("t", 0), 5, [4])
    book.forget([("t", 0)])
    book.done(("t", 0), 4)
    book.committed({("t", 0): 5})
    assert book.due() == {}
