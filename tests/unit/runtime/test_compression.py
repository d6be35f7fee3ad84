"""Test that record batches of every codec are decompressed, but refused if the result would exceed a limit."""

import gzip
import time
import tracemalloc
from contextlib import suppress

import pytest
from aiokafka.codec import snappy_encode
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from services.runtime.compression import DecompressionFailed, without_compression
from tests.unit.broker.batches import build

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LIMIT = 2_000_000


def values(batch: bytes) -> list[bytes]:
    return [record.value for record in DefaultRecordBatch(without_compression(batch))]


@pytest.mark.parametrize("codec", [0, *CODECS.values()], ids=["none", *CODECS])
def test_records_are_those_of_the_plain_batch(codec):
    given_values = [b"a" * 5_000, b"", b"\x00\xff" * 40_000]
    batch = build(given_values, compression=codec)
    assert values(batch) == given_values
    assert without_compression(batch)[:8] == batch[:8], "the offset stays"


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_bomb_is_refused_and_takes_no_memory(codec):
    bomb = build([b"0" * 12_000_000], compression=codec)
    assert len(bomb) < 1_000_000
    tracemalloc.start()
    with pytest.raises(DecompressionFailed, match="more than 2,000,000 bytes after decompression"):
        without_compression(bomb, LIMIT)
    assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_records_may_need_exactly_the_limit(codec):
    batch = build([b"0" * 300_000], compression=codec)
    size = len(without_compression(batch)) - 61
    assert len(without_compression(batch, size)) == size + 61
    with pytest.raises(DecompressionFailed):
        without_compression(batch, size - 1)


def test_several_gzip_members_and_plain_snappy_are_read():
    batch, records = build([b"x" * 100], compression=1), gzip.decompress(build([b"x" * 100], compression=1)[61:])
    assert values(batch[:61] + gzip.compress(records[:40]) + gzip.compress(records[40:])) == [b"x" * 100]
    snappy = build([b"x" * 100], compression=2)
    assert values(snappy[:61] + snappy_encode(records, xerial_compatible=False)) == [b"x" * 100]


def test_many_empty_gzip_members_take_no_long_time():
    batch = build([b"x" * 100], compression=1)
    began_s = time.process_time()
    assert values(batch[:61] + gzip.compress(b"") * 200_000 + batch[61:]) == [b"x" * 100]
    assert time.process_time() - began_s < 5  # 0.3 s here; 46 s if it grew with the square
    with pytest.raises(DecompressionFailed, match="too early"):
        without_compression(batch[:-1])


def test_an_unknown_codec_is_refused():
    batch = bytearray(build([b"x"], compression=1))
    batch[22] |= 7
    with pytest.raises(DecompressionFailed, match="unknown compression codec 7"):
        without_compression(bytes(batch))


@given(st.sampled_from(sorted(CODECS.values())), st.data())
def test_damaged_data_raises_nothing_else(codec, data):
    batch = bytearray(build([b"some words " * 50], compression=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(61, len(batch)))
    with suppress(DecompressionFailed):
        without_compression(bytes(batch[:cut]), LIMIT)
