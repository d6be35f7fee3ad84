"""Decompress Kafka's record batches up to a maximum size. No I/O."""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

MAX_DECOMPRESSED_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a batch's records after decompression. A compressed batch has at most 1 MiB."""

_HEADER_BYTES: Final = 61
_ATTRIBUTES_AT: Final = 21
_CODEC: Final = 0x07
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_LENGTH_AT: Final = 8
_LENGTH_COUNTS_FROM: Final = 12
_GZIP_WINDOW: Final = 31
_GZIP_PIECE: Final = 512
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_FIRST_GUESS: Final = 64 * 1024


class DecompressionFailed(ValueError):
    """Compressed records are damaged, have an unknown codec, or are too large after decompression."""


def without_compression(batch: bytes, limit: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Decompress a record batch (format 2). The checksum in the returned batch is not updated.

    Raises:
        DecompressionFailed: The records cannot be decompressed, or need more than ``limit`` bytes.
    """
    (attributes,) = struct.unpack_from(">h", batch, _ATTRIBUTES_AT)
    if not attributes & _CODEC:
        return batch
    try:
        records = _decompress(attributes & _CODEC, memoryview(batch)[_HEADER_BYTES:], limit)
    except (zlib.error, cramjam.DecompressionError, struct.error) as error:
        raise DecompressionFailed(str(error)) from None
    header = bytearray(batch[:_HEADER_BYTES])
    struct.pack_into(">h", header, _ATTRIBUTES_AT, attributes & ~_CODEC)
    struct.pack_into(">i", header, _LENGTH_AT, _HEADER_BYTES - _LENGTH_COUNTS_FROM + len(records))
    return bytes(header) + records


def _decompress(codec: int, data: memoryview, limit: int) -> bytes:
    if codec == _GZIP:
        return _gunzip(data, limit)
    if codec == _SNAPPY:
        return _unsnap(data, limit)
    if codec in {_LZ4, _ZSTD}:
        return _into_buffer((cramjam.lz4 if codec == _LZ4 else cramjam.zstd).decompress_into, data, limit)
    raise DecompressionFailed(f"unknown compression codec {codec}")


def _gunzip(data: memoryview, limit: int) -> bytes:
    parts, room, at = [], limit, 0
    while at < len(data):
        member, size = zlib.decompressobj(_GZIP_WINDOW), _GZIP_PIECE
        while not member.eof:
            if at >= len(data):
                raise DecompressionFailed("the gzip data ends too early")
            # In pieces, because each member copies what follows it in its input.
            part = member.decompress(data[at : at + size], room + 1)
            room -= len(part)
            if room < 0:
                raise _too_large(limit)
            parts.append(part)
            at = min(at + size, len(data)) - len(member.unused_data)
            size *= 2
    return b"".join(parts)


def _unsnap(data: memoryview, limit: int) -> bytes:
    """Decompress a plain snappy block, or blocks in the xerial framing that Java clients write."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        blocks = [data]
    else:
        blocks, at = [], _XERIAL_HEADER_BYTES
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            if size < 0:
                raise DecompressionFailed("a snappy block has a negative size")
            blocks.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    if sum(cramjam.snappy.decompress_raw_len(block) for block in blocks) > limit:
        raise _too_large(limit)
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


def _into_buffer(decompress_into: Callable[[memoryview, bytearray], int], data: memoryview, limit: int) -> bytes:
    """Decompress into a buffer of up to ``limit`` bytes."""
    size = min(limit, max(_FIRST_GUESS, 4 * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            return bytes(memoryview(buffer)[: decompress_into(data, buffer)])
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if size == limit:
                raise _too_large(limit) from None
        size = min(limit, 2 * size)


def _too_large(limit: int) -> DecompressionFailed:
    return DecompressionFailed(f"it has more than {limit:,} bytes after decompression")
