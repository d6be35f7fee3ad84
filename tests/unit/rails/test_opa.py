"""Test the OPA client over a real socket: only an answer of the documented form counts."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from services.policy import AdmissionRequest
from services.rails.opa import MAX_ANSWER_BYTES, PATH, OpaClient
from services.rails.rail import RailFailed, run_rails
from services.runtime import UserError

ASKED = AdmissionRequest(
    tenant="acme", model="m", lane="batch", attempt=1, prompt_chars=3, max_tokens=4, mode="gated", egress="allowed"
)


class Scripted:
    """A web server's handler that answers with ``status`` and ``body``. If ``body`` is None, it answers after 30 s."""

    def __init__(self):
        self.status, self.body, self.seen = 200, "", None

    async def answer(self, request):
        self.seen = await request.json()
        if self.body is None:
            await asyncio.sleep(30)
        return web.Response(status=self.status, text=self.body)


@pytest.fixture
async def script():
    answers = Scripted()
    app = web.Application()
    app.router.add_post("/v1/data/railbus/admission/decision", answers.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        answers.opa = OpaClient(str(server.make_url("/")))
        yield answers
        await answers.opa.close()


async def test_it_is_asked_what_rego_is_asked(script):
    script.body = '{"result": {"allow": false, "reasons": ["model"], "egress": "forbidden"}, "decision_id": "1"}'
    admission = await script.opa.admit(ASKED)
    assert (admission.allow, admission.reasons, admission.egress) == (False, ("model",), "forbidden")
    assert script.seen == {
        "input": {
            "tenant": "acme", "model": "m", "lane": "batch", "attempt": 1, "prompt_chars": 3, "max_tokens": 4,
            "mode": "gated", "egress": "allowed",
        }
    }  # fmt: skip
    assert PATH == "/v1/data/railbus/admission/decision"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, "{}", "OPA: data.railbus.admission.decision is undefined for this input; give it a default"),
        (200, "<html>", "OPA's answer is not JSON"),
        (200, "[true]", "OPA's answer is not a JSON object"),
        (200, '{"result": true}', "Expected `object`, got `bool`"),
        (200, '{"result": {"allow": "yes"}}', "Expected `bool`, got `str`"),
        (200, '{"result": {"allow": true, "hidden": 1}}', "unknown field `hidden`"),
        (200, '{"result": {"allow": true}}' + " " * MAX_ANSWER_BYTES, "more than 65536 bytes"),
        (500, '{"result": {"allow": true}}', "OPA answered 500"),
    ],
)
async def test_anything_else_is_no_answer(script, status, body, message):
    script.status, script.body = status, body
    with pytest.raises(RailFailed) as raised:
        await script.opa.admit(ASKED)
    assert message in str(raised.value)


async def test_a_slow_server_times_out_and_a_dead_one_breaks(script):
    script.body = None

    async def rail():
        await script.opa.admit(ASKED)
        raise AssertionError("it never answers")

    (slow,) = await run_rails({"admission": rail}, {"admission": 0.2})
    assert slow.result == "timeout"
    dead = OpaClient("http://127.0.0.1:1")
    with pytest.raises(RailFailed, match="OPA is unreachable: ClientConnectorError"):
        await dead.admit(ASKED)
    await dead.close()


@pytest.mark.parametrize("url", ["localhost:8181", "http://", "http://opa:port", "http://a..b:8181"])
def test_an_address_of_another_kind_is_a_mistake(url):
    with pytest.raises(UserError, match=f"RAILBUS_OPA_URL='{url}': must be http://HOST:PORT"):
        OpaClient(url)


@pytest.mark.parametrize(
    "url", ["http://user:se/cret@opa:8181", "htp://user:secret@opa", "user:secret@opa", "opa?token=secret"]
)
def test_a_wrong_address_with_a_password_is_not_shown(url):
    with pytest.raises(UserError) as wrong:
        OpaClient(url)
    assert str(wrong.value) == "RAILBUS_OPA_URL=(hidden): must be http://HOST:PORT"
