"""Read a request's JSON body, which may be compressed. The limit is 1 MiB before and after decompression."""

import zlib
from typing import Final

from aiohttp import web

from services.edge.errors import ApiError
from services.edge.http.connections import handler_of

MAX_BODY_BYTES: Final = 1_048_576
"""Maximum size of a body, 1 MiB. It applies before and after decompression."""

_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The supported content codings (RFC 9110, section 8.4.1), and the ``wbits`` argument of zlib for each."""


async def json_body(request: web.Request) -> bytes:
    """Read and decompress the body.

    The caller must parse the body inside the context manager ``LimitedHandler.body_turn``.

    Raises:
        ApiError: 400, if the body cannot be decompressed; 413, if the body is too large; 415, if the content type is
            not JSON or the content encoding is not supported.
    """
    if request.content_type != "application/json":
        raise ApiError(415, "The body must be JSON: send Content-Type: application/json.", code="not_json")
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity" and encoding not in _WINDOW_BITS:
        raise ApiError(
            415, "The Content-Encoding is not supported: send gzip, deflate or none.", code="unsupported_encoding",
            param="Content-Encoding",
        )  # fmt: skip
    body = await _read(request)
    return body if encoding == "identity" else unpack(body, encoding)


async def _read(request: web.Request) -> bytes:
    # The web framework's ``read`` would keep the body in memory until the request is answered.
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise body_too_large()
    if request.content.is_eof():  # the complete body has arrived
        body = request.content.read_nowait()
        if len(body) > MAX_BODY_BYTES:
            raise body_too_large()
        return body
    connection = handler_of(request)
    connection.wait("body")
    pieces: list[bytes] = []  # a growing buffer would be copied again and again
    size = 0
    try:
        async for piece in request.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            connection.body_arrived(len(piece))
            if size > MAX_BODY_BYTES:
                break
    except BaseException:
        connection.body_failed()
        raise
    connection.busy()
    if size > MAX_BODY_BYTES:
        connection.body_failed()
        raise body_too_large()
    connection.body_taken(size)
    return b"".join(pieces)


def unpack(body: bytes, encoding: str) -> bytes:
    """Decompress a body. ``encoding`` is ``gzip`` or ``deflate``.

    Raises:
        ApiError: 400, if the body cannot be decompressed; 413, if the result is larger than ``MAX_BODY_BYTES``.
    """
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        unpacked = decompressor.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error:
        raise _not_packed(encoding) from None
    if len(unpacked) > MAX_BODY_BYTES:
        raise body_too_large()
    if not decompressor.eof or decompressor.unused_data:
        raise _not_packed(encoding)
    return unpacked


def body_too_large() -> ApiError:
    return ApiError(413, f"The body is larger than {MAX_BODY_BYTES:,} bytes.", code="request_too_large")


def _not_packed(encoding: str) -> ApiError:
    return ApiError(
        400, f"The body is not valid {encoding}, as Content-Encoding says.", code="invalid_encoding",
        param="Content-Encoding",
    )  # fmt: skip
