"""Test that each record from a given offset on is returned once and in order, and that bad batches are skipped."""

import re
import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from services.bus.read.record_decoder import BrokenBatch, Unpacked, unpack
from tests.unit.broker.batches import build

_CRC_AT = 17
_ATTRIBUTES_AT = 21


def batch(base: int, count: int, *, control: bool = False, codec: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(
        2, 0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20
    )
    for index in range(count):
        builder.append(index, 1_000 + base + index, b"k", b"v%d" % (base + index), [("kind", b"Chunk")])
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    if control or codec:
        struct.pack_into(">h", data, _ATTRIBUTES_AT, (0x20 if control else 0) | codec)
        seal(data)
    return bytes(data)


def seal(data: bytearray) -> None:
    from aiokafka.record.util import calc_crc32c

    struct.pack_into(">I", data, _CRC_AT, calc_crc32c(memoryview(data)[_ATTRIBUTES_AT:]))


def values(items: list[Unpacked]) -> list[bytes]:
    return [record.value for _, record in items if record is not None and not isinstance(record, BrokenBatch)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 30))
def test_all_records_from_the_offset_on(counts: list[int], start: int) -> None:
    data, end = b"", 0
    for count in counts:
        data += batch(end, count)
        end += count
    items = list(unpack(data, start))
    assert values(items) == [b"v%d" % at for at in range(start, end)]
    offsets = [next_offset for next_offset, _ in items]
    assert offsets == sorted(offsets)
    assert not items or offsets[-1] == end


def test_a_cut_batch_at_the_end_is_left_for_the_next_answer() -> None:
    items = list(unpack(batch(0, 2) + batch(2, 2)[:-1], 0))
    assert values(items) == [b"v0", b"v1"]
    assert items[-1][0] == 2


def test_a_control_batch_only_moves_the_offset() -> None:
    items = list(unpack(batch(0, 1, control=True) + batch(1, 1), 0))
    assert items[0] == (1, None)
    assert values(items) == [b"v1"]


def test_a_gap_left_by_compaction_is_no_obstacle() -> None:
    items = list(unpack(batch(0, 1) + batch(5, 1), 0))
    assert values(items) == [b"v0", b"v5"]


def test_a_damaged_batch_is_told_and_passed() -> None:
    damaged = bytearray(batch(0, 3))
    damaged[-1] ^= 1
    items = list(unpack(bytes(damaged) + batch(3, 1), 1))
    next_offset, broken = items[0]
    assert isinstance(broken, BrokenBatch)
    assert "checksum" in broken.reason
    assert (broken.first, next_offset) == (1, 3)
    assert values(items) == [b"v3"]


def test_a_batch_that_lies_about_its_contents_is_told_and_passed() -> None:
    lying = bytearray(batch(0, 2))
    struct.pack_into(">i", lying, 57, 9)  # nine records are announced, two are there
    seal(lying)
    items = list(unpack(bytes(lying) + batch(2, 1), 0))
    assert [isinstance(record, BrokenBatch) for _, record in items].count(True) == 1
    assert values(items)[-1] == b"v2"


@pytest.mark.parametrize(("start", "first"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_records_before_one_that_cannot_be_read_are_not_part_of_the_error(start: int, first: int) -> None:
    damaged = bytearray(batch(0, 4))
    at = [found.start() for found in re.finditer(b"kind", damaged)][2]
    damaged[at] = 0xFF  # the name of the third record's header is not UTF-8
    seal(damaged)
    items = list(unpack(bytes(damaged) + batch(4, 1), start))
    ((next_offset, broken),) = [item for item in items if isinstance(item[1], BrokenBatch)]
    assert (broken.first, next_offset) == (first, 4)
    assert values(items) == [b"v%d" % at for at in range(start, 2)] + [b"v4"]


def test_a_batch_with_bytes_behind_its_records_is_told_within_the_batch() -> None:
    damaged = bytearray(batch(0, 3)) + b"\0"
    struct.pack_into(">i", damaged, 8, len(damaged) - 12)
    seal(damaged)
    items = list(unpack(bytes(damaged) + batch(3, 1), 0))
    ((next_offset, broken),) = [item for item in items if isinstance(item[1], BrokenBatch)]
    assert (broken.first, next_offset) == (2, 3)
    assert values(items) == [b"v0", b"v1", b"v2", b"v3"]


def test_an_unknown_compression_is_told_and_passed() -> None:
    items = list(unpack(batch(0, 1, codec=7) + batch(1, 1), 0))
    assert isinstance(items[0][1], BrokenBatch)
    assert values(items) == [b"v1"]


def test_a_batch_too_large_after_decompression_is_told_and_passed() -> None:
    bomb = build([b"0" * 40_000_000], compression=1)
    assert len(bomb) < 50_000
    items = list(unpack(bomb + batch(1, 1), 0))
    assert isinstance(items[0][1], BrokenBatch)
    assert "more than 16,777,216 bytes after decompression" in items[0][1].reason
    assert values(items) == [b"v1"]


def test_compressed_records_before_the_offset_are_left_out() -> None:
    items = list(unpack(build([b"v0", b"v1", b"v2"], compression=3) + batch(3, 1), 1))
    assert values(items) == [b"v1", b"v2", b"v3"]
