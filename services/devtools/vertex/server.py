"""HTTP server of the Vertex AI emulator. ``GET /stats`` returns counters of the calls."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from aiohttp import web

from services.devtools.vertex.script import EmulatorScript, error, parse_script, response, usage, word
from services.runtime.errors import UserError

MAX_BODY_BYTES: Final = 4 * 1024 * 1024

MAX_OUTPUT_TOKENS: Final = 65_535
"""Largest ``maxOutputTokens`` that is accepted, as with Gemini 2.5."""

_MODEL = "/{version}/projects/{project}/locations/{location}/publishers/google/models/{model}:streamGenerateContent"


class VertexEmulator:
    """HTTP server that emulates Vertex AI and counts the calls.

    The model name in a request can be a script, which says how the server answers (see ``parse_script``).

    Args:
        default: Script for requests whose model name is not a script.
        seed: Seed of the random delays of answers.
    """

    def __init__(self, default: EmulatorScript, seed: int = 0) -> None:
        self._default = default
        self._rng = random.Random(seed)  # noqa: S311 - it is used for latencies only
        self.stats: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes([web.post(_MODEL, self._stream), web.get("/stats", self._show_stats)])
        return app

    async def _show_stats(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self.stats))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self.stats["calls"] += 1
        if not request.headers.get("Authorization", "").startswith("Bearer "):
            return _refuse(401)
        try:
            script = parse_script(request.match_info["model"], self._default)
            body = orjson.loads(await request.read())
            prompt = _check(body)
        except ValueError as mistake:
            return _refuse(400, message=str(mistake))
        if script.err is not None and self._refuses(request.match_info["model"], script):
            return _refuse(script.err, script.wait)
        limit = body.get("generationConfig", {}).get("maxOutputTokens")
        return await self._answer(request, script, prompt, limit)

    def _refuses(self, model: str, script: EmulatorScript) -> bool:
        self._refused[model] += 1
        return script.heal is None or self._refused[model] <= script.heal

    async def _answer(
        self, request: web.Request, script: EmulatorScript, prompt: int, limit: int | None
    ) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        self.stats["running"] += 1
        try:
            async with contextlib.aclosing(self._events(script, prompt, limit)) as events:
                async for data in events:
                    await stream.write(data)
            if script.die is not None:
                self.stats["broken_off"] += 1
                if request.transport is not None:
                    request.transport.abort()
            else:
                self.stats["finished"] += 1
        except ConnectionError:
            self.stats["cut_off"] += 1  # the client closed the connection
        except asyncio.CancelledError:
            self.stats["cut_off"] += 1
            raise
        finally:
            self.stats["running"] -= 1
        return stream

    async def _events(self, script: EmulatorScript, prompt: int, limit: int | None) -> AsyncGenerator[bytes, None]:
        if script.shut is not None:
            yield _event({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": usage(prompt, 0)})
            return
        for _ in range(script.empty):
            yield _event(response(None))
        await asyncio.sleep(script.first_s(self._rng))
        count = script.n if limit is None else min(script.n, limit)
        for index in range(count):
            if index == script.die:
                return
            if index == script.stall:
                await asyncio.Event().wait()
            if index == script.fault:
                yield _event(error(500))
                return
            if index == script.block:
                yield _event(response(None, finish="SAFETY", usage=usage(prompt, index)))
                return
            if index == 0 and script.bad is not None:
                yield b"data: {not json\n\n"
                return
            yield _event(response(word(index)))
            self.stats["words"] += 1
            await asyncio.sleep(script.gap / 1_000)
        yield _event(response("", finish="STOP" if count == script.n else "MAX_TOKENS", usage=usage(prompt, count)))


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\r\n\r\n"


def _refuse(code: int, wait_s: int | None = None, message: str = "scripted") -> web.Response:
    headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    return web.json_response(error(code, wait_s, message), status=code, headers=headers)


def _check(body: Any) -> int:
    if not isinstance(body, dict) or not isinstance(body.get("contents"), list) or not body["contents"]:
        msg = "contents: at least one is required"
        raise ValueError(msg)
    words = 0
    for content in (*body["contents"], *([body["systemInstruction"]] if "systemInstruction" in body else [])):
        if content.get("role") not in {"user", "model", None}:
            msg = f"contents.role: {content.get('role')!r} is neither 'user' nor 'model'"
            raise ValueError(msg)
        if not all(part["text"] for part in content["parts"]):
            msg = "contents.parts.text: it is empty"
            raise ValueError(msg)
        words += sum(len(part["text"].split()) for part in content["parts"])
    config = body.get("generationConfig", {})
    if len(config.get("stopSequences", [])) > 5:
        msg = "generationConfig.stopSequences: at most 5"
        raise ValueError(msg)
    if not 1 <= config.get("maxOutputTokens", 1) <= MAX_OUTPUT_TOKENS:
        msg = f"generationConfig.maxOutputTokens: from 1 to {MAX_OUTPUT_TOKENS}"
        raise ValueError(msg)
    return words


@asynccontextmanager
async def serving(emulator: VertexEmulator, host: str, port: int) -> AsyncIterator[int]:
    """Run the emulator's HTTP server until the ``async with`` block ends. Yield the server's port.

    Raises:
        UserError: The port cannot be used.
    """
    if not 0 <= port <= 65_535:  # uvloop would take the lowest 16 bits
        raise UserError(f"--port {port}: must be between 0 and 65535")
    runner = web.AppRunner(emulator.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise UserError(f"--port {port}: cannot be used ({error.strerror}); choose another") from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
