"""Test that the archiver's buffer returns each record once and in order, and never mixes two days in one batch."""

from hypothesis import given
from hypothesis import strategies as st

from services.audit.buffer import DAY_MS, PartitionBuffer, units_of
from services.bus import StoredRecord


def record(offset, time_ms=0, value=b""):
    return StoredRecord("railbus.streams", 0, offset, time_ms, None, value, ())


reads = st.tuples(st.integers(0, 20), st.sampled_from((0, 0, 0, DAY_MS)), st.integers(0, 3_000))
steps = st.lists(reads | st.just("take"), max_size=40)


@given(st.integers(0, 5), steps)
def test_what_comes_again_is_taken_once_and_no_batch_has_two_days(start, plan):
    buffer, taken, seen, time_ms = PartitionBuffer(start), [], {}, 0
    for step in [*plan, *["take"] * 50]:
        if step == "take":
            begin, batch = buffer.take()
            assert begin == (taken[-1].offset + 1 if taken else start)
            assert all(each.offset >= begin for each in batch)
            assert len({each.timestamp_ms // DAY_MS for each in batch}) <= 1
            taken += batch
        else:
            offset, later_ms, size = step
            time_ms += later_ms
            seen.setdefault(offset, record(offset, time_ms, bytes(size)))
            buffer.add(seen[offset], now_us=7)
        assert (buffer.since_us is None) == (len(buffer) == 0)
        assert buffer.units >= 0
    offsets = [each.offset for each in taken]
    assert offsets == sorted(set(offsets))
    assert all(offset >= start for offset in offsets)
    assert (len(buffer), buffer.units) == (0, 0)


def test_a_record_without_a_value_takes_memory_too():
    assert units_of(record(0)) == 1
    assert units_of(record(0, value=bytes(10_000))) == 11


def test_lost_records_give_way_to_those_at_their_offsets():
    buffer = PartitionBuffer(0)
    for offset in (0, 1, 2, 3, 4, 0, 1, 2):  # the log is read again from an earlier record on
        buffer.add(record(offset, 1, b"old"), 7)
    for offset in (3, 4, 5):
        buffer.add(record(offset, 9, b"new"), 7)
    assert [each.value for each in buffer.take()[1]] == [b"old"] * 3 + [b"new"] * 3
    assert buffer.units == 0


def test_a_batch_that_cannot_be_unpacked_replaces_no_record():
    broken = StoredRecord("railbus.streams", 0, 0, 0, None, None, (("railbus-broken-batch", b"bad header"),))
    assert broken.is_broken_batch
    buffer = PartitionBuffer(0)
    for each in (record(0, 1, b"prompt"), record(1, 1, b"more"), broken, broken._replace(offset=2)):
        buffer.add(each, 7)
    buffer.add(broken._replace(offset=2), 7)
    assert [(each.offset, each.value) for each in buffer.take()[1]] == [(0, b"prompt"), (1, b"more"), (2, None)]
    assert buffer.units == 0
