"""Read and write the primitive types of Kafka's wire format.

The flexible versions (KIP-482) are not supported.
"""

import struct
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class MalformedRequest(Exception):
    pass


class Reader:
    """Reads primitive values from the bytes of a request.

    Every read may raise `MalformedRequest`.
    """

    __slots__ = ("data", "pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data = data
        self.pos = pos

    def _number(self, form: struct.Struct) -> int:
        try:
            value: int = form.unpack_from(self.data, self.pos)[0]
        except struct.error:
            raise MalformedRequest("the request ends in the middle of a number") from None
        self.pos += form.size
        return value

    def i8(self) -> int:
        return self._number(_I8)

    def i16(self) -> int:
        return self._number(_I16)

    def i32(self) -> int:
        return self._number(_I32)

    def i64(self) -> int:
        return self._number(_I64)

    def boolean(self) -> bool:
        return self.i8() != 0

    def _take(self, size: int) -> bytes:
        taken = self.data[self.pos : self.pos + size]
        if len(taken) != size:
            raise MalformedRequest(f"the request ends before {size} announced bytes")
        self.pos += size
        return taken

    def nullable_string(self) -> str | None:
        """Read UTF-8 text with a 16-bit length prefix. A negative length means null."""
        size = self.i16()
        if size < 0:
            return None
        begin = self.pos
        self.pos = end = begin + size
        if end > len(self.data):
            raise MalformedRequest(f"the request ends before {size} announced bytes")
        try:
            return self.data[begin:end].decode()
        except UnicodeDecodeError:
            raise MalformedRequest("a string is not UTF-8") from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRequest("a string that may not be null is null")
        return text

    def blob(self) -> bytes:
        """Read bytes with a 32-bit length prefix. Null is read as empty bytes."""
        return self._take(max(self.i32(), 0))

    def nullable_array(self, item: Callable[[], T]) -> list[T] | None:
        """Read an array with a 32-bit count prefix. A negative count means null."""
        count = self.i32()
        if count < 0:
            return None
        if count > len(self.data) - self.pos:
            raise MalformedRequest(f"an array announces {count} items, more than there are bytes")
        return [item() for _ in range(count)]

    def array(self, item: Callable[[], T]) -> list[T]:
        """Read an array with a 32-bit count prefix. Null is read as an empty list."""
        return self.nullable_array(item) or []


class Writer:
    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray()

    def i8(self, value: int) -> "Writer":
        self.out += _I8.pack(value)
        return self

    def i16(self, value: int) -> "Writer":
        self.out += _I16.pack(value)
        return self

    def i32(self, value: int) -> "Writer":
        self.out += _I32.pack(value)
        return self

    def i64(self, value: int) -> "Writer":
        self.out += _I64.pack(value)
        return self

    def boolean(self, value: bool) -> "Writer":
        return self.i8(int(value))

    def string(self, value: str | None) -> "Writer":
        """Write UTF-8 text with a 16-bit length prefix. None is written as length -1."""
        if value is None:
            return self.i16(-1)
        raw = value.encode()
        self.i16(len(raw))
        self.out += raw
        return self

    def blob(self, value: bytes) -> "Writer":
        self.i32(len(value))
        self.out += value
        return self

    def array(self, items: Iterable[T], item: Callable[[T], object]) -> "Writer":
        listed = list(items)
        self.i32(len(listed))
        for each in listed:
            item(each)
        return self

    def done(self) -> bytes:
        return bytes(self.out)
