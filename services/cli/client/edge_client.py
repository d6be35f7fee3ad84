"""Send a request to an edge over a websocket, and resume the answer if the connection breaks."""

import asyncio
import os
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import orjson

from schemas.stream import Outcome
from services.cli.client.answer_ops import AnswerError, AnswerOp, OpHandler, parse_op
from services.cli.client.chat_request import ChatRequest
from services.stream import Close

API_KEY_VARIABLE: Final = "RAILBUS_API_KEY"
"""Environment variable with the API key that is sent to the edge."""

CONNECT_TIMEOUT_S: Final = 5.0

ERROR_TIMEOUT_S: Final = 5.0
"""Maximum time to query the edge for the error of a failed request."""

REQUEST_ERROR_CODES: Final = frozenset({"bad_request", "model_not_found"})
"""Error codes of the edge for a request that the user has to change, because no engine can serve it."""

APART_S: Final = 60.0
"""Maximum time without a connection to the edge before the command gives up, in seconds."""

HEARTBEAT_S: Final = 20.0
"""Seconds between pings. An edge that does not answer within half of this counts as gone."""

FOR_NOW_STATUSES: Final = frozenset({429, 502, 503, 504})
FOR_NOW_CODES: Final = frozenset({"busy", "log_unavailable", "not_ready", "rate_limit_exceeded", "too_many_streams"})
"""Statuses and error codes that do not last. A resume that was refused with one of them is sent again, because the
request is on the log."""

RETRY_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Waits in seconds before each attempt to connect again. The last one repeats until the request times out."""

MAX_FRAME_BYTES: Final = 16_777_216
"""Maximum size of a message from the edge, in bytes. A client that resumes can get all earlier ops in one message."""

FLAGS: Final = {
    "model": "--model: leave it out for whatever is served",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "seed": "--seed",
}
"""The flag of ``railbus ask`` for each field of the request, for error messages."""


@dataclass(frozen=True, slots=True)
class EdgeAddress:
    url: str
    key: str | None = None


async def ask_edge(request: ChatRequest, edge: EdgeAddress, take: OpHandler) -> None:
    """Send a request, and call ``take`` with each op of the answer. The last op is ``Close``.

    Raises:
        AnswerError: No complete answer was received, or the request was invalid.
    """
    stream = _AnswerStream(request, take)
    headers = {} if edge.key is None else {"Authorization": f"Bearer {edge.key}"}
    try:
        async with asyncio.timeout(request.timeout_s()), aiohttp.ClientSession(headers=headers) as session:
            await _until_closed(session, edge, stream)
            if stream.outcome == "failed":
                await _raise_request_error(session, f"{edge.url}/v1/chat/completions/{stream.request_id}?stream=false")
    except TimeoutError:
        raise AnswerError(f"the answer did not end within {request.timeout_s():.0f} s") from None


async def _raise_request_error(session: aiohttp.ClientSession, url: str) -> None:
    try:
        async with asyncio.timeout(ERROR_TIMEOUT_S), session.get(url) as response:
            # The op ``close`` does not contain the error.
            error = (await response.json())["error"]
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError):
        return
    if error.get("code") in REQUEST_ERROR_CODES:
        raise _answer_error(error)


def _answer_error(error: dict[str, Any]) -> AnswerError:
    param = error.get("param")
    where = f" ({FLAGS.get(param, f'at {param}')})" if param else ""
    return AnswerError(f"{error['message']}{where}", usage=error.get("type") == "invalid_request_error")


async def _until_closed(session: aiohttp.ClientSession, edge: EdgeAddress, stream: "_AnswerStream") -> None:
    attempt, clock = 0, asyncio.get_running_loop().time
    seen_s = clock()
    while stream.outcome is None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await session.ws_connect(
                    f"{edge.url}/v1/stream", max_msg_size=MAX_FRAME_BYTES, heartbeat=HEARTBEAT_S
                )
        except aiohttp.WSServerHandshakeError as error:
            if stream.request_id is None or error.status not in FOR_NOW_STATUSES:
                raise AnswerError(f"the edge at {edge.url} refuses: HTTP {error.status} {error.message}") from None
        except aiohttp.ClientConnectorCertificateError as error:
            raise AnswerError(
                f"the certificate of the edge at {edge.url} is not trusted ({error.certificate_error}): name the file"
                " of its authority in SSL_CERT_FILE"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if stream.request_id is None:
                raise AnswerError(
                    f"no edge at {edge.url} ({_reason(error)}): start one with `railbus up`, or name it with --url"
                ) from None
        else:
            async with socket:
                if await stream.read(socket):
                    attempt = 0
            seen_s = clock()
        if stream.outcome is None:
            if clock() - seen_s > APART_S:
                raise AnswerError(
                    f"the edge at {edge.url} is gone for {APART_S:.0f} s: the answer to request {stream.request_id} may"
                    " be read when it is back"
                )
            await asyncio.sleep(RETRY_S[min(attempt, len(RETRY_S) - 1)])
            attempt += 1


class _AnswerStream:
    def __init__(self, request: ChatRequest, take: OpHandler) -> None:
        self._request = request
        self._take = take
        self._last: str | None = None
        self.request_id: str | None = None
        self.outcome: Outcome | None = None

    async def read(self, socket: aiohttp.ClientWebSocketResponse) -> bool:
        """Send the request, or resume its answer, and handle what the edge sends.

        Return False if the edge sent nothing, or only a temporary refusal.
        """
        await socket.send_str(self._opening())
        received = False
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                frame = orjson.loads(message.data)
                if self.request_id is not None and _is_for_now(frame):
                    return received
                received = True
                self._frame(frame)
                if self.outcome is not None:
                    return True
        if self.request_id is None:
            raise AnswerError(f"the edge closed before it accepted the request (code {socket.close_code})")
        return received

    def _opening(self) -> str:
        if self.request_id is None:
            return orjson.dumps({"type": "ask", **self._request.body()}).decode()
        resume = {"type": "resume", "request_id": self.request_id, "after": self._last}
        return orjson.dumps(resume).decode()

    def _frame(self, frame: dict[str, Any]) -> None:
        self.request_id = frame.get("request_id", self.request_id)
        if frame.get("type") == "error":
            raise _answer_error(frame["error"])
        if "op" not in frame:
            return
        self._last = frame["id"]
        for value in frame["ops"] if frame["op"] == "catch_up" else (frame,):
            op = parse_op(value)
            self._take(AnswerOp(self.request_id or "", frame["id"], op))
            if isinstance(op, Close):
                self.outcome = op.outcome


def _is_for_now(frame: dict[str, Any]) -> bool:
    return frame.get("type") == "error" and frame["error"].get("code") in FOR_NOW_CODES


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.os_error.errno) if error.os_error.errno else "unreachable"
    return str(error) or type(error).__name__
