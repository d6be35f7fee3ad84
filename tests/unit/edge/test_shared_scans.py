"""Test that look-ups share a reader of a partition, and that each look-up gets its own records once and in order."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from schemas.topics import REQUESTS, STREAMS
from services.bus import UnreadableRecord
from services.edge.log import shared_scans
from services.edge.log.shared_scans import Scan, ScanPlace, ScanQueue

KIND = "Chunk"
HERE = ScanPlace(STREAMS, 0)
LOG = 60
KEYS = [b"a", b"b", b"c"]


def record(offset, place=HERE, shift=0):
    return UnreadableRecord(
        place.topic.name,
        place.partition,
        offset,
        0,
        KEYS[(offset + shift) % 3],
        b"",
        ((("kind", KIND.encode())),),
        None,
    )


class Disk:
    """A simulated reader of the log. ``read`` is the number of records that it has read."""

    def __init__(self, queue, oldest=0):
        self.queue, self.oldest, self.read, self.turns = queue, oldest, 0, {}
        self.complete, self.shift = [], 0

    def begin(self):
        turn = self.queue.begin_turn()
        if turn is not None:
            self.turns[turn] = max(turn.begin, self.oldest)
            self.complete += self.queue.start(turn, self.turns[turn])
            self._end_if_over(turn)
        return turn

    def step(self, turn, records):
        begin = self.turns[turn]
        end = self.turns[turn] = min(begin + records, LOG)
        found = [record(offset, turn.place, self.shift) for offset in range(begin, end)]
        turn.take([each for each in found if turn.wants(KIND, each.key)])
        self.read += end - begin
        self.complete += self.queue.advance(turn, end)
        self._end_if_over(turn)

    def end(self, turn):
        if turn in self.turns:
            del self.turns[turn]
            self.queue.end_turn(turn)

    def run(self, slice_records=7):
        """Run one turn after the other until all scans are complete.

        A turn reads ``slice_records`` records in each step. After a step, the turn ends if its owner is complete, or if
        there is a scan that has not joined the turn.
        """
        while turn := self.begin():
            while turn in self.turns:
                self.step(turn, slice_records)
                if self.queue.others_wait():
                    self.end(turn)

    def run_turn(self, turn):
        while turn in self.turns:
            self.step(turn, 7)

    def _end_if_over(self, turn):
        if turn.over:
            self.end(turn)


def scan(begin=0, end=LOG, *, key=b"a", tenant="acme", place=HERE, **given):
    return Scan(tenant, place, key, frozenset({KIND}), begin, end, **given)


def offsets(each):
    return [found.offset for found in each.found]


def expected(each, begin, end):
    return [offset for offset in range(begin, end) if KEYS[offset % 3] == each.key]


def test_look_ups_that_come_together_read_the_partition_once():
    disk = Disk(queue := ScanQueue(3))
    scans = [scan(begin, key=KEYS[begin % 3]) for begin in range(20)]
    for each in scans:
        queue.put(each)
    disk.run()
    assert disk.read == LOG
    assert [offsets(each) for each in scans] == [expected(each, n, LOG) for n, each in enumerate(scans)]
    assert len(disk.complete) == len(scans)


def test_one_that_comes_later_joins_ahead_of_the_reader_and_not_behind():
    disk = Disk(queue := ScanQueue(3))
    first, ahead, behind = scan(), scan(30), scan(3)
    queue.put(first)
    turn = disk.begin()
    disk.step(turn, 10)
    queue.put(ahead)
    queue.put(behind)
    disk.step(turn, 10)
    assert ahead in turn
    assert behind not in turn
    assert queue.others_wait()
    disk.end(turn)
    disk.run()
    assert offsets(ahead) == expected(ahead, 30, LOG)
    assert offsets(behind) == expected(behind, 3, LOG)
    assert disk.read == LOG + 17  # the 17 that it had missed


def test_a_look_up_far_behind_does_not_delay_the_tenants_others(monkeypatch):
    monkeypatch.setattr(shared_scans, "JOIN_RECORDS", 10)
    queue = ScanQueue(3)
    near, far, other = scan(50), scan(10), scan(45)
    for each in (near, far, other):
        queue.put(each)
    disk = Disk(queue)
    assert disk.begin().begin == 45
    assert other.position == 45


def test_another_tenants_look_up_is_joined_and_never_started_earlier_for():
    queue = ScanQueue(3)
    queue.put(scan(20, tenant="a"))
    queue.put(scan(10, tenant="b"))
    disk = Disk(queue)
    turn = disk.begin()
    assert (turn.owner.tenant, turn.begin) == ("a", 20)
    disk.end(turn)
    turn = disk.begin()
    assert (turn.owner.tenant, turn.begin) == ("b", 10)
    disk.step(turn, 15)
    assert {each.tenant for each in turn} == {"a", "b"}


def test_a_partition_has_one_reader_and_a_tenant_its_share():
    queue = ScanQueue(per_tenant=2)
    places = [ScanPlace(STREAMS, 0), ScanPlace(STREAMS, 1), ScanPlace(REQUESTS, 0)]
    for place in (places[0], *places):
        queue.put(scan(place=place, tenant="a"))
    disk = Disk(queue)
    assert [disk.begin().place for _ in range(2)] == places[:2]
    assert queue.begin_turn() is None
    queue.put(scan(place=places[2], tenant="b"))
    assert disk.begin().owner.tenant == "b"


def test_records_that_the_log_no_longer_has_are_passed_over():
    queue = ScanQueue(3)
    gone, partly = scan(0, 20), scan(10)
    queue.put(gone)
    queue.put(partly)
    disk = Disk(queue, oldest=30)
    disk.run()
    assert offsets(gone) == []
    assert offsets(partly) == expected(partly, 30, LOG)
    assert disk.complete == [gone, partly]


@pytest.mark.parametrize("noticed", ["when the reader is looked at", "by its next record"])
def test_offsets_that_the_log_gives_a_second_time_are_read_again(noticed):
    disk = Disk(queue := ScanQueue(3))
    early, late = scan(), scan(40)
    queue.put(early)
    queue.put(late)
    turn = disk.begin()
    disk.step(turn, 20)
    if noticed == "when the reader is looked at":
        disk.complete += queue.advance(turn, 10)
    disk.turns[turn], disk.shift = 10, 1  # the broker has lost its end, and others write there
    disk.run_turn(turn)
    assert offsets(early) == [0, 3, 6, 9, *range(11, LOG, 3)]
    assert offsets(late) == [*range(41, LOG, 3)]
    assert {*disk.complete} == {early, late}


def test_the_first_record_is_enough():
    disk = Disk(queue := ScanQueue(3))
    first = scan(1, first_only=True)
    queue.put(first)
    disk.run(slice_records=1)
    assert offsets(first) == [3]
    assert disk.read == 3


@pytest.mark.parametrize("owner", [True, False])
def test_one_that_is_given_up_gets_nothing_more(owner):
    disk = Disk(queue := ScanQueue(3))
    scans = [scan(), scan(key=b"b")]
    for each in scans:
        queue.put(each)
    turn = disk.begin()
    given_up = turn.owner if owner else next(each for each in turn if each is not turn.owner)
    queue.remove(given_up)
    assert turn.over == owner
    assert not turn.wants(KIND, given_up.key)
    disk.end(turn)
    disk.run()
    assert given_up.found == []
    assert len(disk.complete) == 1


@given(st.data())
def test_everybody_gets_what_is_theirs_whoever_comes_and_goes(data):
    queue = ScanQueue(per_tenant=2)
    disk = Disk(queue, oldest=data.draw(st.integers(0, 10)))
    known, given_up = {}, set()
    steps = st.sampled_from(["put", "put", "begin", "step", "step", "end", "give up"])
    for step in data.draw(st.lists(steps, max_size=60)):
        turns = sorted(disk.turns, key=lambda turn: turn.place.partition)
        if step == "put":
            begin = data.draw(st.integers(0, LOG - 1))
            end = data.draw(st.integers(begin + 1, LOG))
            each = scan(
                begin, end, key=data.draw(st.sampled_from(KEYS)), tenant=data.draw(st.sampled_from("ab")),
                place=ScanPlace(STREAMS, data.draw(st.integers(0, 2))),
            )  # fmt: skip
            known[each] = (begin, end)
            queue.put(each)
        elif step == "begin":
            disk.begin()
        elif step == "give up" and known:
            each = data.draw(st.sampled_from(list(known)))
            given_up.add(each)
            queue.remove(each)
        elif turns:
            turn = data.draw(st.sampled_from(turns))
            disk.step(turn, data.draw(st.integers(1, 20))) if step == "step" else disk.end(turn)
        places = [turn.place for turn in disk.turns]
        assert len(places) == len({*places})
    for turn in list(disk.turns):
        disk.end(turn)
    disk.run(data.draw(st.integers(1, 20)))
    assert {*disk.complete} | given_up == {*known}
    for each, (begin, end) in known.items():
        if each not in given_up:
            assert offsets(each) == expected(each, max(begin, disk.oldest), end)
    assert not queue.others_wait()
