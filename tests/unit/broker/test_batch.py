import struct

import pytest
from aiokafka.record.util import calc_crc32c

from services.broker.protocol import record_batch as batches
from services.broker.protocol.error_codes import ErrorCode
from services.broker.protocol.record_batch import BatchRejected
from tests.unit.broker.batches import NOW_MS, build

GZIP, SNAPPY, LZ4 = 1, 2, 3


def check(batch: bytes, version: int = 7) -> None:
    header = batches.parse(batch)
    batches.check_produced(batch, header, version)


def patched(batch: bytes, at: int, form: str, value: int) -> bytes:
    """Return the batch with one field changed, and with a checksum that fits.

    The field begins at byte `at`, and has the format `form` of `struct`.
    """
    raw = bytearray(batch)
    struct.pack_into(form, raw, at, value)
    struct.pack_into(">I", raw, 17, calc_crc32c(raw[21:]))
    return bytes(raw)


def code_of(batch: bytes, version: int = 7) -> ErrorCode:
    with pytest.raises(BatchRejected) as refused:
        check(batch, version)
    return refused.value.code


def test_a_batch_of_the_client_library_is_taken():
    batch = build([b"a", b"b"], producer=(7, 1, 40))
    check(batch)
    header = batches.parse(batch)
    assert (header.record_count, header.producer_id, header.producer_epoch, header.base_sequence) == (2, 7, 1, 40)
    assert header.max_timestamp_ms == NOW_MS
    assert header.size == len(batch)


@pytest.mark.parametrize("at", range(17, 90))
def test_a_flipped_bit_anywhere_under_the_checksum_is_noticed(at):
    batch = bytearray(build([b"value" * 3]))
    assert len(batch) == 90
    batch[at] ^= 0x10
    assert code_of(bytes(batch)) is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [0, 1, 12, 16, 17, 60, 61])
def test_a_batch_cut_short_is_refused(size):
    assert code_of(build()[:size]) is ErrorCode.INVALID_RECORD


def test_two_batches_in_one_are_refused():
    assert code_of(build() + build()) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_another_magic_is_refused(magic):
    assert code_of(patched(build(), 16, "b", magic)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("at", "form", "value"), [(57, ">i", 5), (57, ">i", 0), (57, ">i", -1), (23, ">i", 9)])
def test_a_record_count_that_disagrees_with_the_offsets_is_refused(at, form, value):
    assert code_of(patched(build([b"a", b"b"]), at, form, value)) is ErrorCode.INVALID_RECORD


def test_control_records_and_transactions_are_refused():
    assert code_of(patched(build(), 21, ">h", 0x20)) is ErrorCode.INVALID_RECORD
    assert code_of(patched(build(), 21, ">h", 0x10)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_zstd_needs_a_client_that_knows_it_and_no_codec_beyond_it_exists():
    zstd = patched(build(), 21, ">h", 4)
    assert code_of(zstd, version=6) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    check(zstd, version=7)
    assert code_of(patched(build(), 21, ">h", 5)) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_timestamps_are_read_from_compressed_batches_too():
    times = [NOW_MS, NOW_MS + 5, NOW_MS + 3]
    for codec in (0, GZIP):
        batch = build([b"a" * 200] * 3, times_ms=times, compression=codec)
        assert batches.timestamps(batch) == list(enumerate(times))


def test_records_that_cannot_be_opened_are_no_error():
    assert batches.timestamps(patched(build([b"a" * 50] * 3), 21, ">h", GZIP)) is None
