"""Bytes around bytes: HTTP/1.1 chunks, websocket frames, server-sent events.

Written here because a chunk must cost one write: the web framework's own writers are coroutines.
"""


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def text_frame(payload: bytes) -> bytes:
    """One unmasked, final text frame (RFC 6455, section 5.2): what a server sends."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


def sse(data: bytes, event_id: bytes | None = None) -> bytes:
    """One server-sent event; ``data`` is one line."""
    if event_id is None:
        return b"data: %b\n\n" % data
    return b"id: %b\ndata: %b\n\n" % (event_id, data)


SSE_COMMENT = b": still here\n\n"
