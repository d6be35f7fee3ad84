"""A real HTTP server on loopback that answers as a test defines, and records the requests that it gets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Script = Callable[[web.Request, dict], Awaitable[web.StreamResponse]]


class Upstream:
    def __init__(self):
        self.bodies = []
        self.headers = []
        self.connections = set()
        self.gone = asyncio.Event()
        self.models = ["small"]
        self.models_status = 200
        self.script: Script = says("Hello", " there")
        self.address = ""

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.connections.add(request.transport)
        try:
            return await self.script(request, body)
        except (ConnectionResetError, asyncio.CancelledError):
            self.gone.set()
            raise

    async def show_metrics(self, _):
        return web.Response(text="vllm:spec_decode_num_draft_tokens_total 120.0\n")

    async def list_models(self, request):
        self.headers.append(request.headers)
        data = [{"id": name, "object": "model"} for name in self.models]
        return web.json_response({"object": "list", "data": data}, status=self.models_status)


def delta(text=None, *, finish=None, **rest):
    return {
        "choices": [{"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": finish}],
        **rest,
    }


def event(value):
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def opened(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def sends(*parts, gap_s=0.0):
    """Return a script for ``Upstream`` that streams these bytes unchanged, with ``gap_s`` seconds between the parts."""

    async def script(request, _):
        response = await opened(request)
        for part in parts:
            await response.write(part)
            if gap_s:
                await asyncio.sleep(gap_s)
        await response.write_eof()
        return response

    return script


def says(*texts, finish="stop", usage=None, tail=(), gap_s=0.0):
    """Return a script for ``Upstream`` that streams a well-formed answer. ``tail`` is sent right before ``[DONE]``."""
    parts = [event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})]
    parts += [event(delta(text)) for text in texts]
    parts.append(event(delta(finish=finish)))
    if usage is not None:
        parts.append(event({"choices": [], "usage": usage}))
    return sends(*parts, *tail, DONE, gap_s=gap_s)


def refuses(status, body=b"", **headers):
    async def script(*_):
        return web.Response(status=status, body=body, headers=headers)

    return script


def breaks_off(*texts, when):
    """Return a script for ``Upstream`` that streams texts, waits until ``when`` is set, and aborts the connection.

    The client may lose texts that it has not read by then.
    """

    async def script(request, _):
        response = await opened(request)
        for text in texts:
            await response.write(event(delta(text)))
        await when.wait()
        request.transport.abort()
        return response

    return script


def stays_open(*parts):
    """Return a script for ``Upstream`` that streams these bytes, then sends nothing for a minute."""

    async def script(request, _):
        response = await opened(request)
        for part in parts:
            await response.write(part)
        await asyncio.sleep(60)
        return response

    return script


def falls_silent(*texts, headers=True):
    if headers:
        return stays_open(*(event(delta(text)) for text in texts))

    async def script(*_):
        await asyncio.sleep(60)

    return script


@asynccontextmanager
async def running_upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    app = web.Application(client_max_size=32_000_000)
    app.add_routes([web.post("/v1/chat/completions", upstream.complete), web.get("/v1/models", upstream.list_models)])
    app.add_routes([web.get("/metrics", upstream.show_metrics)])
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = site._server.sockets[0].getsockname()
    upstream.address = f"http://{host}:{port}"
    try:
        yield upstream
    finally:
        await runner.cleanup()
