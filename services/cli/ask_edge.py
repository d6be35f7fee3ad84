"""Asking an edge over its websocket; a connection that breaks is taken up again where it was."""

import asyncio
import os
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from services.cli.answers import Answered, AnswerFailed, Take, read_op
from services.cli.question import Question
from services.stream import Close

CONNECT_S: Final = 5.0
"""Longest time for one connection to stand."""

RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Waits before a broken connection is tried again; the last one repeats until the question's time is up."""

MAX_FRAME: Final = 16_777_216
"""Bytes of a message from the edge; a whole history can come as one."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Where the edge is.

    Attributes:
        url: Its address.
        key: The API key, where it asks for one.
    """

    url: str
    key: str | None = None


async def ask_edge(question: Question, edge: Edge, take: Take) -> None:
    """Hands over the ops of one answer, up to its ``Close``.

    Raises:
        AnswerFailed: The edge refused, cannot be reached, or the answer did not end in time.
    """
    stream = _Stream(question, take)
    headers = {} if edge.key is None else {"Authorization": f"Bearer {edge.key}"}
    try:
        async with asyncio.timeout(question.give_up_s), aiohttp.ClientSession(headers=headers) as session:
            await _until_closed(session, edge, stream)
    except TimeoutError:
        raise AnswerFailed(f"the answer did not end within {question.give_up_s:.0f} s") from None


async def _until_closed(session: aiohttp.ClientSession, edge: Edge, stream: "_Stream") -> None:
    attempt = 0
    while not stream.closed:
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await session.ws_connect(f"{edge.url}/v1/stream", max_msg_size=MAX_FRAME)
        except aiohttp.WSServerHandshakeError as error:
            raise AnswerFailed(f"the edge at {edge.url} refuses: HTTP {error.status} {error.message}") from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if stream.request_id is None:
                raise AnswerFailed(
                    f"no edge at {edge.url} ({_reason(error)}): start one with `railbus up`, or name it with --url"
                ) from None
        else:
            async with socket:
                if await stream.read(socket):
                    attempt = 0
        if not stream.closed:
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1


class _Stream:
    """One question's way through any number of connections."""

    def __init__(self, question: Question, take: Take) -> None:
        self._question = question
        self._take = take
        self._last: str | None = None
        self.request_id: str | None = None
        self.closed = False

    async def read(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Reads one connection to its end; whether anything came."""
        await socket.send_str(self._opening())
        came = False
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                came = True
                self._frame(orjson.loads(message.data))
                if self.closed:
                    return True
        if self.request_id is None:
            raise AnswerFailed(f"the edge ended the connection before it took the question (code {socket.close_code})")
        return came

    def _opening(self) -> str:
        if self.request_id is None:
            return orjson.dumps({"type": "ask", **self._question.body()}).decode()
        resume = {"type": "resume", "request_id": self.request_id, "after": self._last}
        return orjson.dumps(resume).decode()

    def _frame(self, frame: dict[str, Any]) -> None:
        self.request_id = frame.get("request_id", self.request_id)
        if frame.get("type") == "error":
            error = frame["error"]
            param = f" (at {error['param']})" if error.get("param") else ""
            raise AnswerFailed(f"{error['message']}{param}", usage=error.get("type") == "invalid_request_error")
        if "op" not in frame:
            return
        self._last = frame["id"]
        for value in frame["ops"] if frame["op"] == "catch_up" else (frame,):
            op = read_op(value)
            self._take(Answered(self.request_id or "", frame["id"], op))
            self.closed = self.closed or isinstance(op, Close)


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.os_error.errno) if error.os_error.errno else "unreachable"
    return str(error) or type(error).__name__
