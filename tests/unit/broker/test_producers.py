from hypothesis import given
from hypothesis import strategies as st

from services.broker.protocol.error_codes import ErrorCode
from services.broker.storage.producer_state import (
    REMEMBERED_BATCHES,
    REMEMBERED_PRODUCERS,
    BatchSequence,
    ProducerStates,
    RememberedBatch,
)

LAST = 2**31 - 1


def test_a_producer_without_an_id_is_never_judged():
    producers = ProducerStates()
    for _ in range(3):
        assert producers.check_sequence(BatchSequence(-1, -1, -1, 5)) is ErrorCode.NONE
        producers.remember(BatchSequence(-1, -1, -1, 5), 0, -1)
    assert len(producers) == 0


def test_a_retry_is_found_with_its_first_offset_and_a_gap_is_refused():
    producers = ProducerStates()
    first = BatchSequence(7, 0, 0, 3)
    assert producers.check_sequence(first) is ErrorCode.NONE
    producers.remember(first, 100, 7)
    assert producers.check_sequence(first) == RememberedBatch(0, 2, 100, 7)
    assert producers.check_sequence(BatchSequence(7, 0, 4, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check_sequence(BatchSequence(7, 0, 0, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, (
        "part of a batch is no retry"
    )
    assert producers.check_sequence(BatchSequence(7, 0, 3, 1)) is ErrorCode.NONE


def test_an_unknown_producer_may_begin_anywhere():
    assert ProducerStates().check_sequence(BatchSequence(7, 3, 41, 1)) is ErrorCode.NONE


def test_a_new_epoch_begins_at_zero_and_the_old_one_is_fenced():
    producers = ProducerStates()
    producers.remember(BatchSequence(7, 0, 5, 1), 0, -1)
    assert producers.check_sequence(BatchSequence(7, 1, 6, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.check_sequence(BatchSequence(7, 1, 0, 1)) is ErrorCode.NONE
    producers.remember(BatchSequence(7, 1, 0, 1), 1, -1)
    assert producers.check_sequence(BatchSequence(7, 0, 6, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequence_numbers_wrap():
    producers = ProducerStates()
    producers.remember(BatchSequence(7, 0, LAST - 1, 2), 0, -1)
    assert producers.check_sequence(BatchSequence(7, 0, 0, 1)) is ErrorCode.NONE
    producers.remember(BatchSequence(7, 0, LAST, 3), 0, -1)
    assert producers.check_sequence(BatchSequence(7, 0, 2, 1)) is ErrorCode.NONE


def test_the_producer_idle_for_longest_is_forgotten_first():
    producers = ProducerStates()
    for pid in range(REMEMBERED_PRODUCERS):
        producers.remember(BatchSequence(pid, 0, 0, 1), pid, -1)
    producers.remember(BatchSequence(0, 0, 1, 1), 5000, -1)
    producers.remember(BatchSequence(REMEMBERED_PRODUCERS, 0, 0, 1), 6000, -1)
    assert len(producers) == REMEMBERED_PRODUCERS
    assert producers.check_sequence(BatchSequence(0, 0, 1, 1)) == RememberedBatch(1, 1, 5000, -1)
    assert producers.check_sequence(BatchSequence(1, 0, 0, 1)) is ErrorCode.NONE, (
        "forgotten, so a retry would be taken as new"
    )


@given(st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 7), max_size=4)), max_size=40))
def test_whatever_is_retried_nothing_is_appended_twice_or_out_of_order(sends):
    """Whatever batches a client sends again, no record is appended twice or out of order.

    After each new batch, the client repeats some of its last eight batches. The broker remembers the last five.
    """
    producers, log, sent = ProducerStates(), [], []
    for count, retries in sends:
        first = sent[-1].last + 1 if sent else 0
        sent.append(BatchSequence(1, 0, first, count))
        for batch in [sent[-1], *(sent[-1 - back] for back in retries if back < len(sent))]:
            verdict = producers.check_sequence(batch)
            age = len(sent) - 1 - sent.index(batch)
            if verdict is ErrorCode.NONE:
                producers.remember(batch, len(log), -1)
                log += range(batch.first, batch.first + batch.records)
            elif age < REMEMBERED_BATCHES:
                assert isinstance(verdict, RememberedBatch)
                assert log[verdict.offset] == batch.first
            else:
                assert verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log == list(range(len(log)))
