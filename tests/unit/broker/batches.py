"""Build record batches with the client library aiokafka, and read batches back."""

from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from services.broker.protocol.record_batch import HEADER, BatchHeader

NOW_MS = 1_790_000_000_000


def build(
    values: Sequence[bytes | None] = (b"v",),
    *,
    keys: Sequence[bytes | None] | None = None,
    times_ms: Sequence[int] | None = None,
    compression: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return a batch with a record for each of `values`. `producer` is (producer id, epoch, first sequence number)."""
    pid, epoch, sequence = producer
    builder = DefaultRecordBatchBuilder(2, compression, 0, pid, epoch, sequence, 1 << 24)
    for index, value in enumerate(values):
        builder.append(
            index, times_ms[index] if times_ms else NOW_MS, keys[index] if keys else b"key", value, [("h", b"1")]
        )
    return bytes(builder.build())


def split(data: bytes) -> list[bytes]:
    """Split the data of a fetch response into its record batches."""
    found = []
    while data:
        size = BatchHeader._make(HEADER.unpack_from(data)).size
        assert size <= len(data), "a fetch returns whole batches"
        found.append(data[:size])
        data = data[size:]
    return found


def records(data: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, value) of each record in the data of a fetch response. Check the checksum of each batch."""
    found = []
    for batch in split(data):
        parsed = DefaultRecordBatch(bytearray(batch))
        assert parsed.validate_crc()
        found += [(record.offset, record.value) for record in parsed]
    return found
