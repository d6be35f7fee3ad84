"""A simulated model server for measurements of speed.

It serves OpenAI's chat completions on loopback, on a fixed schedule.

``tests.bench.kit.schedule`` computes the schedules and faults, and this module executes them in one process. To be
fast, it has one protocol object for each connection, and starts no asyncio task for a request. A chunk is sent when it
is due or up to a millisecond later, never earlier.
"""

import asyncio
import json
import math
import time
from collections.abc import Iterator
from typing import Any, Final, TextIO

from tests.bench.kit.schedule import (
    MODELS,
    ScheduleError,
    Step,
    json_response,
    parse_schedule,
    refused,
    streamed,
    whole,
)

MAX_HEAD_BYTES: Final = 65_536
MAX_BODY_BYTES: Final = 16 * 2**20
BACKLOG: Final = 2_048


class BadRequest(Exception):
    """The received bytes are not a request that this server can read."""


class Journal:
    """The server's journal. Each line is a JSON object about an event of a request. ``at_s`` is the wall-clock time."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def note(self, event: str, **fields: Any) -> None:
        """Append one line to the file. Do nothing if the journal has no file."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, "at_s": time.time()} | fields) + "\n")
            self._file.flush()


class Connection(asyncio.Protocol):
    """The connection of one client. Its requests are answered one after another."""

    answers = 0  # how many this process has given; part of their ids

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._steps: Iterator[Step] | None = None
        self._next: Step | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._held = False  # the client reads too slowly
        self._asked_s = 0.0
        self._sent = 0
        self._label: dict[str, Any] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        """Stop sending. Write to the journal if the client disconnected before the end of an answer."""
        del error
        if self._timer is not None:
            self._timer.cancel()
        self._unread.clear()
        if self._next is not None:
            self._next = None
            self._journal.note("client_gone", sent=self._sent, **self._label)

    def pause_writing(self) -> None:
        """Stop sending, because the client reads too slowly."""
        self._held = True

    def resume_writing(self) -> None:
        """Continue to send, because the client has caught up."""
        self._held = False
        self._advance()

    def data_received(self, data: bytes) -> None:
        """Answer every complete request. A request that arrives during an answer waits for the end of that answer."""
        self._unread += data
        try:
            if len(self._unread) > MAX_HEAD_BYTES + MAX_BODY_BYTES:
                raise BadRequest("too long")
            while self._next is None and (request := take_request(self._unread)) is not None:
                self._answer(*request)
        except BadRequest as error:
            self._transport.write(refused(400, str(error)))
            self._transport.close()

    def _answer(self, method: str, path: str, body: bytes) -> None:
        path = path.partition("?")[0]
        if method == "GET" and path == "/v1/models":
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "bench"} for name in MODELS]
            self._transport.write(json_response(200, {"object": "list", "data": listed}))
        elif method == "POST" and path == "/v1/chat/completions":
            self._complete(body)
        else:
            self._transport.write(refused(404, f"nothing at {method} {path}"))

    def _complete(self, body: bytes) -> None:
        try:
            asked = json.loads(body)
            model, prompt = asked["model"], prompt_of(asked)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadRequest("the body is no chat completion request with a model and messages") from None
        try:
            schedule = parse_schedule(model)
        except ScheduleError as error:
            self._transport.write(refused(404, str(error)))
            return
        Connection.answers += 1
        number = Connection.answers
        self._label = {"id": f"chatcmpl-{number}", "model": model}
        self._journal.note("arrived", **self._label)
        if schedule.error_status is not None:
            self._transport.write(refused(schedule.error_status, "an error, as the model's name says"))
            return
        self._asked_s, self._sent = time.perf_counter(), 0
        if asked.get("stream"):
            usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            self._steps = streamed(schedule, model, prompt, number, usage=usage)
        else:
            self._steps = iter([whole(schedule, model, prompt, number)])
        self._next = next(self._steps)
        self._advance()

    def _advance(self) -> None:
        """Write all steps that are due, and set a timer for the next step."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while (step := self._next) is not None and not self._held:
            left_ms = step.at_ms - (time.perf_counter() - self._asked_s) * 1e3
            if left_ms > 0:
                # Timers count whole milliseconds. Rounded down, a timer would end too early and be set again and again.
                self._timer = self._loop.call_later(math.ceil(left_ms) / 1e3, self._advance)
                return
            self._perform(step)

    def _perform(self, step: Step) -> None:
        if step.reset:
            self._journal.note("reset", sent=self._sent, **self._label)
            self._next = None
            self._transport.abort()
            return
        self._transport.write(step.data)
        if step.chunks and not self._sent:
            self._journal.note("first_chunk", **self._label)
        self._sent += step.chunks
        assert self._steps is not None
        self._next = next(self._steps, None)
        if self._next is None:
            self._journal.note("done", sent=self._sent, **self._label)
            self._loop.call_soon(self.data_received, b"")  # the next request may be here already


def take_request(unread: bytearray) -> tuple[str, str, bytes] | None:
    """Remove the first request from the received bytes, and return its method, path and body.

    Return None if the request is not complete yet.

    Raises:
        BadRequest: The request cannot be read, or is too long.
    """
    end = unread.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    if end < 0:
        if len(unread) >= MAX_HEAD_BYTES:
            raise BadRequest("the head is too long")
        return None
    lines = bytes(unread[:end]).decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3:
        raise BadRequest("the first line is no request")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        whole_body = _chunked_body(unread, end + 4)
    else:
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            raise BadRequest(f"content-length {length!r} is no length below {MAX_BODY_BYTES}")
        stop = end + 4 + int(length)
        whole_body = (bytes(unread[end + 4 : stop]), stop) if len(unread) >= stop else None
    if whole_body is None:
        return None
    body, stop = whole_body
    del unread[:stop]
    return words[0], words[1], body


def _chunked_body(unread: bytearray, at: int) -> tuple[bytes, int] | None:
    body = b""
    while (line_end := unread.find(b"\r\n", at)) >= 0:
        try:
            size = int(bytes(unread[at:line_end]).partition(b";")[0], 16)
        except ValueError:
            raise BadRequest("a piece of the body has no length") from None
        begin = line_end + 2
        if len(unread) < begin + size + 2:
            return None
        body += unread[begin : begin + size]
        at = begin + size + 2
        if size == 0:
            return body, at
    return None


def prompt_of(asked: dict[str, Any]) -> str:
    """Return the whole text of a request's messages."""
    texts = []
    for message in asked["messages"]:
        content = message.get("content") or ""
        parts = [part.get("text", "") for part in content] if isinstance(content, list) else [content]
        texts.extend(parts)
    return "\n".join(texts)


async def serve(port: int, journal: TextIO | None = None) -> asyncio.Server:
    """Start the server on a loopback port, and return it. Port 0 means any free port."""
    notes = Journal(journal)
    return await asyncio.get_running_loop().create_server(lambda: Connection(notes), "127.0.0.1", port, backlog=BACKLOG)
