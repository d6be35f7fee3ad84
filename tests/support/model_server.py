"""A test model server. For each model name, it streams a scripted answer at a constant rate."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
from aiohttp import web

TOKEN_CHARS = 4
"""Number of characters of each token, always the same, so that a test can count tokens."""

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}


@dataclass
class ScriptedAnswer:
    """An answer that the test model server gives.

    Attributes:
        text: Text of the answer.
        tokens_per_s: Tokens per second.
        step_tokens: Number of tokens that are sent together, as one step.
        begin_s: Seconds until the first step.
        said: Number of steps that were sent.
        broken: Whether the connection was closed before the end of the answer.
    """

    text: str
    tokens_per_s: float = 120.0
    step_tokens: int = 8
    begin_s: float = 0.05
    said: int = 0
    broken: bool = False

    @property
    def steps(self):
        size = self.step_tokens * TOKEN_CHARS
        return [self.text[at : at + size] for at in range(0, len(self.text), size)]


class ModelServer:
    """The test model server.

    ``sayings`` maps model names to answers. Initially, the only model is ``default``, and its answer is "Yes.".
    """

    def __init__(self):
        self.sayings = {"default": ScriptedAnswer("Yes.")}
        self.url = ""

    async def models(self, _):
        return web.json_response({"object": "list", "data": [{"id": "default", "object": "model"}]})

    async def complete(self, request):
        body = orjson.loads(await request.read())
        saying = self.sayings.get(body["model"])
        if saying is None:
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        begun = loop.time() + saying.begin_s
        tokens = 0
        try:
            for number, text in enumerate(saying.steps):
                due = begun + number * saying.step_tokens / saying.tokens_per_s
                await asyncio.sleep(max(0.0, due - loop.time()))
                tokens += -(-len(text) // TOKEN_CHARS)
                await response.write(frame({"content": text}, tokens))
                saying.said = number + 1
            await response.write(frame({}, tokens, "stop") + b"data: [DONE]\n\n")
        except (ConnectionError, asyncio.CancelledError):
            saying.broken = True
            raise
        return response


def frame(delta, tokens, finish=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": 5 + tokens}
    return b"data: %b\n\n" % orjson.dumps(HEAD | {"model": "m", "choices": [choice], "usage": usage})


@asynccontextmanager
async def serve_model():
    """Yield a test model server that listens on a free port of this machine."""
    speaker = ModelServer()
    app = web.Application()
    app.add_routes([web.get("/v1/models", speaker.models), web.post("/v1/chat/completions", speaker.complete)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        speaker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield speaker
    finally:
        await runner.cleanup()
