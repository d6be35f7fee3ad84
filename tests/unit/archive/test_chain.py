"""Test that an archive's hash chain reports changed, dropped, inserted and reordered records, and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.archive.chain import ArchivedRecord, QueryFields, breaks, chained, digest, genesis
from services.bus import StoredRecord

content = st.none() | st.binary(max_size=8)
headers = st.lists(st.tuples(st.text("ab", max_size=2), content))
rows_of = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 9), content, content, headers),
    min_size=1, max_size=12,
)  # fmt: skip
BEFORE = genesis("railbus.streams", 0)


def chain(rows):
    offset, found = -1, []
    for step, time_ms, key, value, headers in rows:
        offset += step
        record = StoredRecord("railbus.streams", 0, offset, time_ms, key, value, tuple(headers))
        found.append(ArchivedRecord(record, QueryFields(None, None, "t", time_ms)))
    return list(zip(found, chained(BEFORE, found), strict=True))


@given(rows_of)
def test_what_was_not_changed_breaks_nowhere(rows):
    assert list(breaks(BEFORE, chain(rows))) == []


@given(rows_of, st.data())
def test_an_edit_is_named_at_its_offset_and_once(rows, data):
    held = chain(rows)
    index = data.draw(st.integers(0, len(held) - 1))
    archived, recorded = held[index]
    record = archived.record
    changed = data.draw(
        st.sampled_from(
            (
                archived._replace(record=record._replace(value=(record.value or b"") + b"x")),
                archived._replace(record=record._replace(key=(record.key or b"") + b"x")),
                archived._replace(record=record._replace(timestamp_ms=record.timestamp_ms + 1)),
                archived._replace(record=record._replace(headers=(*record.headers, ("", None)))),
                archived._replace(fields=archived.fields._replace(tenant=None)),
                archived._replace(sealed=True),
            )
        )
    )
    held[index] = (changed, recorded)
    (found,) = breaks(BEFORE, held)
    assert found.offset == record.offset


@given(rows_of, st.data())
def test_a_drop_is_named_at_the_next_record(rows, data):
    held = chain(rows)
    index = data.draw(st.integers(0, len(held) - 1))
    gone = held.pop(index)[0].record.offset
    found = list(breaks(BEFORE, held))
    if index == len(held):
        assert found == []  # the chain does not show that its tail was cut off, but the checkpoint does
    else:
        assert [each.offset for each in found] == [held[index][0].record.offset]
        assert found[0].change == "dropped"
        assert (-1 if found[0].after is None else found[0].after) < gone < found[0].offset


@given(rows_of.filter(lambda rows: len(rows) > 1), st.data())
def test_two_that_changed_places_are_named(rows, data):
    held = chain(rows)
    low, high = sorted(data.draw(st.lists(st.integers(0, len(held) - 1), min_size=2, max_size=2, unique=True)))
    held[low], held[high] = held[high], held[low]
    found = list(breaks(BEFORE, held))
    assert held[low][0].record.offset in {each.offset for each in found}
    assert "reordered" in {each.change for each in found}


def test_an_insertion_is_called_one():
    held = chain([(1, 0, b"k", b"v", [])] * 3)
    held.insert(2, (held[1][0]._replace(record=held[1][0].record._replace(offset=1)), held[1][1]))
    assert {each.change for each in breaks(BEFORE, held)} == {"inserted"}


@pytest.mark.parametrize("other", [("railbus.streams", 1), ("railbus.requests", 0)])
def test_a_chain_is_of_one_partition(other):
    archived, recorded = chain([(1, 0, b"k", b"v", [])])[0]
    assert digest(genesis(*other), archived) != recorded


def test_none_and_nothing_are_different():
    empty = StoredRecord("t", 0, 0, 0, b"", b"", (("a", b""),))
    variants = (empty, empty._replace(key=None), empty._replace(value=None), empty._replace(headers=(("a", None),)))
    fields = QueryFields(None, None, None, None)
    assert len({digest(BEFORE, ArchivedRecord(each, fields)) for each in variants}) == len(variants)
