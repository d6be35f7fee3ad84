"""Load client for streamed chat completions, with a closed or an open loop.

In a closed loop, each of a fixed number of streams sends its next request when its last answer has ended. In an open
loop, requests are due at given times, whether or not earlier answers have ended. Latency counts from these times, even
if the client or the server was too busy to start then. This avoids coordinated omission.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import aiohttp
import orjson

from tests.bench.kit.figures import Answer

READ_BYTES: Final = 1 << 20
REFUSAL_BYTES: Final = 300

Ask = Callable[[int, float], Awaitable[Answer]]
"""Function that sends a request and returns its answer. Its arguments are the request's number and its due time."""


class Client:
    """Sends requests to one model of one server.

    Args:
        session: The HTTP session to use.
        url: Base URL of the server, without ``/v1``.
        model: Name of the model.
        prompt: Function from the number of a request to its prompt.
        headers: Additional headers of each request.
        extra: Additional fields in the body of each request.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        prompt: Callable[[int], str],
        *,
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._session = session
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._model = model
        self._prompt = prompt
        self._headers = {"content-type": "application/json"} | (headers or {})
        self._extra = extra or {}

    async def ask(self, number: int, intended_s: float) -> Answer:
        """Send the request with this number, and read its answer to the end.

        An error is not raised but stored in the answer. ``intended_s`` is the time when the request was due.
        """
        messages = [{"role": "user", "content": self._prompt(number)}]
        body = orjson.dumps({"model": self._model, "stream": True, "messages": messages} | self._extra)
        answer = Answer(intended_s=intended_s, sent_s=time.perf_counter())
        try:
            async with self._session.post(self._url, data=body, headers=self._headers) as response:
                if response.status == 200:
                    await _read(response, answer)
                else:
                    said = (await response.content.read(REFUSAL_BYTES)).decode(errors="replace")
                    answer.error = f"status {response.status}: {said}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended_s = time.perf_counter()
        return answer


async def _read(response: aiohttp.ClientResponse, answer: Answer) -> None:
    texts: list[str] = []
    rest = b""
    async for data in response.content.iter_any():
        now_s = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            event = line[5:].strip()
            if event == b"[DONE]":
                answer.finished = True
                continue
            said = orjson.loads(event)
            if "error" in said:
                answer.error = f"in the stream: {said['error']}"
            for choice in said.get("choices") or ():
                text = (choice.get("delta") or {}).get("content")
                if text:
                    answer.arrivals_s.append(now_s)
                    texts.append(text)
                if choice.get("finish_reason") == "content_filter":
                    answer.error = "the answer was stopped: content_filter"
    answer.text = "".join(texts)


def session(timeout_s: float) -> aiohttp.ClientSession:
    """Open an HTTP session with an unlimited number of connections. ``timeout_s`` is the time limit of an answer."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        read_bufsize=READ_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def closed_loop(ask: Ask, *, streams: int, requests: int, first: int = 0) -> list[Answer]:
    """Send ``requests`` requests, at most ``streams`` at once. Return all answers.

    Args:
        ask: Function that sends one request.
        streams: Number of concurrent requests.
        requests: Total number of requests.
        first: Number of the first request; ``ask`` gets each request's number.
    """
    numbers = iter(range(first, first + requests))
    answers: list[Answer] = []

    async def stream() -> None:
        for number in numbers:
            answers.append(await ask(number, time.perf_counter()))  # noqa: PERF401 - all streams share the list

    await asyncio.gather(*(stream() for _ in range(min(streams, requests))))
    return answers


async def open_loop(ask: Ask, arrivals_s: Iterable[float], *, most_open: int, first: int = 0) -> list[Answer]:
    """Send a request at each arrival time, whether or not earlier answers have ended. Return all answers.

    Args:
        ask: Function that sends one request.
        arrivals_s: Arrival time of each request, in seconds from now, in ascending order.
        most_open: Maximum number of concurrent requests. Further requests wait, and their wait counts as latency.
        first: Number of the first request.
    """
    places = asyncio.Semaphore(most_open)
    begun_s = time.perf_counter()
    answers: list[Answer] = []

    async def one(number: int, intended_s: float) -> None:
        try:
            answers.append(await ask(number, intended_s))
        finally:
            places.release()

    async with asyncio.TaskGroup() as tasks:
        for number, arrival_s in enumerate(arrivals_s, first):
            intended_s = begun_s + arrival_s
            if (wait_s := intended_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            await places.acquire()
            tasks.create_task(one(number, intended_s))
    return answers
