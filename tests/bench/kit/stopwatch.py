"""A client that does nothing but take the time: one connection, one question after the other, blocking sockets.

It is a process of its own with the standard library alone: an event loop between the socket and the clock would add
to each answer the time of the others. Started by ``tests.bench.ledger``; prints one JSON line per answer::

    {"id": ..., "begin": ..., "first": ..., "end": ...}     time of day in seconds
"""

import json
import re
import socket
import sys
import time

from tests.bench.kit.workload import prompt

_ID = re.compile(rb"X-Request-Id: chatcmpl-(\S+)", re.IGNORECASE)
PATIENCE_S = 60.0


def main() -> None:
    """Ask ``count`` questions from number ``first`` on, each ``step`` after the last."""
    host, port, model = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    count, first, step, max_tokens = map(int, sys.argv[4:])
    connection = socket.create_connection((host, port), PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for number in range(first, first + count * step, step):
        body = json.dumps({"model": model, "stream": True, "max_tokens": max_tokens,
                           "messages": [{"role": "user", "content": prompt(12, number)}]}).encode()  # fmt: skip
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        begin = time.time()
        connection.sendall(request)
        answer = connection.recv(65_536)
        first_at = end = time.time()
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            more = connection.recv(65_536)
            end = time.time()
            if not more:
                sys.exit(f"question {number}: the connection was closed after {answer[-200:]!r}")
            answer += more
        found = _ID.search(answer)
        if not answer.startswith(b"HTTP/1.1 200") or found is None:
            sys.exit(f"question {number}: {answer[:300]!r}")
        print(json.dumps({"id": found[1].decode(), "begin": begin, "first": first_at, "end": end}))


if __name__ == "__main__":
    main()
