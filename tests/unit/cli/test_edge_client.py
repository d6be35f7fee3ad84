"""Tests of a client of the edge that resumes its answer after the connection broke."""

import aiohttp.test_utils
import orjson
import pytest
from aiohttp import web

from services.cli.client import edge_client
from services.cli.client.answer_ops import AnswerError
from services.cli.client.chat_request import ChatRequest
from services.cli.client.edge_client import EdgeAddress, ask_edge
from services.stream import Close

ID = "0199a2b4-1c00-7abc-8def-0123456789ab"
ACCEPTED = {"type": "accepted", "request_id": ID}
CLOSE = {"request_id": ID, "id": "1:5:0", "op": "close", "outcome": "completed", "reason": ""}


async def ask_and_get(*answers, total_ms=5_000):
    """Ask a simulated edge. Return the types of the client's messages, and the ops that the client received.

    Each of ``answers`` is for one connection. A dictionary is sent as a frame, and then the edge disconnects. A number
    is an HTTP status with which the edge refuses the connection.
    """
    left, got = list(answers), []

    async def serve(request):
        answer = left.pop(0)
        if isinstance(answer, int):
            return web.Response(status=answer)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        got.append(orjson.loads((await socket.receive()).data)["type"])
        await socket.send_str(orjson.dumps(answer).decode())
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/v1/stream", serve)
    ops = []
    async with aiohttp.test_utils.TestServer(app) as server:
        request = ChatRequest(prompt="hi", total_ms=total_ms)
        await ask_edge(request, EdgeAddress(str(server.make_url("")).rstrip("/")), lambda each: ops.append(each.op))
    return got, ops


def error(code):
    return {"type": "error", "request_id": ID, "error": {"message": "said", "type": "t", "param": None, "code": code}}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(edge_client, "RETRY_S", (0.0, 0.01))


@pytest.mark.parametrize("refusal", [429, 502, 503, error("busy"), error("log_unavailable")])
async def test_a_resume_that_is_refused_for_now_is_sent_again(refusal):
    got, ops = await ask_and_get(ACCEPTED, refusal, refusal, CLOSE)
    assert got[0] == "ask"
    assert set(got[1:]) == {"resume"}
    assert ops == [Close(outcome="completed", reason="")]


@pytest.mark.parametrize(
    "answers",
    [(503,), (error("busy"),), (ACCEPTED, 401), (ACCEPTED, error("expired")), (ACCEPTED, error("newer_version"))],
)
async def test_other_refusals_end_the_command(answers):
    with pytest.raises(AnswerError, match=r"refuses: HTTP|said"):
        await ask_and_get(*answers)


async def test_an_edge_that_does_not_come_back_ends_the_command(monkeypatch):
    monkeypatch.setattr(edge_client, "APART_S", 0.05)
    with pytest.raises(AnswerError, match="is gone"):
        await ask_and_get(ACCEPTED, *[503] * 100, total_ms=None)
