"""A client that only measures time. It sends one question after another over one connection, with blocking sockets.

The client uses no event loop and runs in its own process. In a shared event loop, the measured time of an answer would
include work for other answers. ``tests.bench.ledger`` starts the client. The client prints one JSON line per answer::

    {"id": ..., "begin": ..., "end": ..., "read": ...}     wall-clock time in seconds

``end`` is when the kernel received the last bytes, and ``read`` is when this process read them. If all cores are busy,
this process waits for a core between ``end`` and ``read``. The server is not the cause of this wait.
"""

import json
import re
import socket
import struct
import sys
import time

from tests.bench.kit.workload import prompt

_ID = re.compile(rb"X-Request-Id: chatcmpl-(\S+)", re.IGNORECASE)
PATIENCE_S = 60.0

SO_TIMESTAMPNS = 35  # Linux's; the socket module does not have it
_TIMESPEC = struct.Struct("@ll")


def receive(connection: socket.socket) -> tuple[bytes, float]:
    """Return the received bytes, and the time when the kernel received the last of them."""
    data, messages, _, _ = connection.recvmsg(65_536, socket.CMSG_SPACE(_TIMESPEC.size))
    for _, kind, control in messages:
        if kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(control)
            return data, seconds + nanoseconds / 1e9
    return data, time.time()


def main() -> None:
    """Ask ``count`` questions, generated from the numbers ``first``, ``first + step``, ``first + 2 * step`` and so on.

    The command line is HOST PORT MODEL COUNT FIRST STEP MAX_TOKENS.
    """
    host, port, model = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    count, first, step, max_tokens = map(int, sys.argv[4:])
    connection = socket.create_connection((host, port), PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    for number in range(first, first + count * step, step):
        body = json.dumps({"model": model, "stream": True, "max_tokens": max_tokens,
                           "messages": [{"role": "user", "content": prompt(12, number)}]}).encode()  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        begin = time.time()
        connection.sendall(request)
        answer, end = receive(connection)
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            more, end = receive(connection)
            if not more:
                sys.exit(f"question {number}: the connection was closed after {answer[-200:]!r}")
            answer += more
        read = time.time()
        found = _ID.search(answer)
        if not answer.startswith(b"HTTP/1.1 200") or found is None:
            sys.exit(f"question {number}: {answer[:300]!r}")
        print(json.dumps({"id": found[1].decode(), "begin": begin, "end": end, "read": read}))


if __name__ == "__main__":
    main()
