"""Test that each partition's records are acknowledged once and in order, even if producer sessions are lost."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs

from schemas.stream import Chunk, Closed
from services.bus.write.outbox import BATCH_BYTES, Outbox, OutgoingRecord, may_linger, record_size

LANES = [("a", 0), ("a", 1), ("b", 0)]


def letter(number: int, size: int = 10) -> OutgoingRecord:
    return OutgoingRecord(b"k", b"x" * size, [], number, None, record_size(b"k", b"x" * size))


class OutboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox()
        self.put_order: dict[tuple[str, int], list[int]] = {lane: [] for lane in LANES}
        self.acked: dict[tuple[str, int], list[int]] = {lane: [] for lane in LANES}
        self.out: dict[tuple[str, int], list[OutgoingRecord]] = {}
        self.number = 0

    @rule(lane=st.sampled_from(LANES), urgent=st.booleans(), big=st.booleans())
    def put(self, lane: tuple[str, int], urgent: bool, big: bool) -> None:
        self.number += 1
        now = self.outbox.put(lane, letter(self.number, BATCH_BYTES // 2 if big else 10), urgent=urgent)
        assert now == (urgent and lane not in self.out)
        self.put_order[lane].append(self.number)

    @rule()
    def drain(self) -> None:
        for lane, letters in self.outbox.drain():
            assert lane not in self.out, "one batch of a lane at a time"
            assert letters
            assert len(letters) == 1 or sum(one.size for one in letters) <= BATCH_BYTES
            self.out[lane] = letters

    @rule(lane=st.sampled_from(LANES))
    def settle(self, lane: tuple[str, int]) -> None:
        if lane in self.out:
            self.acked[lane] += [one.timestamp_ms for one in self.out.pop(lane)]
            self.outbox.complete_batch(lane)

    @rule()
    def lose_session(self) -> None:
        assert self.outbox.requeue_sent() == sum(map(len, self.out.values()))
        self.out.clear()

    @invariant()
    def order_holds(self) -> None:
        for lane in LANES:
            assert self.acked[lane] == self.put_order[lane][: len(self.acked[lane])]

    @invariant()
    def count_is_what_is_not_acknowledged(self) -> None:
        assert self.outbox.count == sum(map(len, self.put_order.values())) - sum(map(len, self.acked.values()))

    def teardown(self) -> None:
        while self.outbox.count:
            self.drain()
            for lane in LANES:
                self.settle(lane)
        assert self.acked == self.put_order


TestOutbox = OutboxMachine.TestCase


def test_a_lane_with_urgent_records_goes_again_when_its_batch_is_over() -> None:
    outbox = Outbox()
    outbox.put(LANES[0], letter(1), urgent=True)
    list(outbox.drain())
    assert not outbox.put(LANES[0], letter(2), urgent=True), "its lane is busy: the acknowledgement will wake it"
    assert outbox.complete_batch(LANES[0])


def test_lingering_records_wait_for_the_timer() -> None:
    outbox = Outbox()
    assert not outbox.put(LANES[0], letter(1), urgent=False)
    list(outbox.drain())
    outbox.put(LANES[0], letter(2), urgent=False)
    assert not outbox.complete_batch(LANES[0])


def test_records_whose_timer_ran_out_while_the_lane_was_busy_go_next() -> None:
    outbox = Outbox()
    outbox.put(LANES[0], letter(1), urgent=False)
    list(outbox.drain())
    outbox.put(LANES[0], letter(2), urgent=False)
    assert list(outbox.drain()) == []
    assert outbox.complete_batch(LANES[0])


def test_records_of_a_batch_that_was_too_large_go_one_by_one() -> None:
    outbox = Outbox()
    for number in (1, 2, 3):
        outbox.put(LANES[0], letter(number), urgent=True)
    list(outbox.drain())
    outbox.put(LANES[0], letter(4), urgent=True)
    outbox.put(LANES[0], letter(5), urgent=True)
    outbox.split_batch(LANES[0])
    outbox.requeue_sent()
    batches = []
    while outbox.count:
        batches += [[one.timestamp_ms for one in letters] for _, letters in outbox.drain()]
        outbox.complete_batch(LANES[0])
    assert batches == [[1], [2], [3], [4, 5]]


def test_take_all_keeps_order_of_sent_and_waiting() -> None:
    outbox = Outbox()
    for number in (1, 2):
        outbox.put(LANES[0], letter(number), urgent=True)
    list(outbox.drain())
    outbox.put(LANES[0], letter(3), urgent=True)
    assert [one.timestamp_ms for one in outbox.take_all()[LANES[0]]] == [1, 2, 3]
    assert outbox.count == 0


def test_only_chunks_after_the_first_may_linger() -> None:
    first = Chunk(
        request_id="01890a5d-ac96-774b-bcce-b302099a8057", tenant="t", at=1, source="g", attempt=1, run="r", seq=0,
        start=0, text="a",
    )  # fmt: skip
    last = Closed(request_id=first.request_id, tenant="t", at=1, source="r", outcome="completed")
    assert [may_linger(event) for event in (first, structs.replace(first, seq=1), last)] == [False, True, False]
