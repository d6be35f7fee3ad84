"""An HTTP server that stands in for OPA. A test can make it give wrong answers, late answers or no answers."""

import asyncio

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.policy import AdmissionRequest

PATH = "/v1/data/railbus/admission/decision"


class FakeOpaServer:
    """A server that gives the admission decisions of a policy, as OPA would.

    Attributes:
        asked: The input of each query so far.
        answer: What to send instead of the decision: the bytes of a body, or an HTTP status. None to send the decision.
        open: While this event is not set, no query is answered.
    """

    def __init__(self, policy):
        self._policy = policy
        self.asked = []
        self.answer = None
        self.open = asyncio.Event()
        self.open.set()

    async def start(self):
        app = web.Application()
        app.router.add_post(PATH, self._decide)
        self._server = TestServer(app, host="127.0.0.1")
        await self._server.start_server()
        return str(self._server.make_url("/"))

    async def close(self):
        self.open.set()
        await self._server.close()

    async def _decide(self, request):
        question = (await request.json())["input"]
        self.asked.append(question)
        await self.open.wait()
        match self.answer:
            case int(status):
                return web.Response(status=status, text="{}")
            case bytes(body):
                return web.Response(body=body, content_type="application/json")
        return web.json_response({"result": msgspec.to_builtins(self._policy.admit(AdmissionRequest(**question)))})
