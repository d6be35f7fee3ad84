"""Test the Vertex AI emulator: scripts in model names, answers, and the requests that it refuses as Vertex AI does."""

import json

import pytest
from aiohttp.test_utils import TestClient, TestServer

from services.devtools.vertex.script import EmulatorScript, parse_script
from services.devtools.vertex.server import VertexEmulator

PATH = "/v1beta1/projects/p/locations/global/publishers/google/models/{}:streamGenerateContent?alt=sse"
AUTH = {"Authorization": "Bearer x"}
PROMPT = {"contents": [{"role": "user", "parts": [{"text": "two words"}]}]}


def test_parts_are_read_in_any_order_and_the_rest_is_the_default() -> None:
    default = EmulatorScript(n=3, ttft=4, gap=5)
    assert parse_script("emulated-ttft300-n7", default) == EmulatorScript(n=7, ttft=300, gap=5)
    assert parse_script("emulated", default) == default
    assert parse_script("gemini-2.5-flash", default) == default


@pytest.mark.parametrize("model", ["emulated-x1", "emulated-n-5", "emulated-N5", "emulated-n99999999"])
def test_unknown_parts_are_refused(model: str) -> None:
    with pytest.raises(ValueError, match="the parts are"):
        parse_script(model, EmulatorScript())


async def ask(model: str, body: object, headers: dict[str, str] = AUTH) -> tuple[int, str]:
    async with TestClient(TestServer(VertexEmulator(EmulatorScript(n=2, ttft=1, gap=1)).app())) as client:
        response = await client.post(PATH.format(model), json=body, headers=headers)
        return response.status, await response.text()


async def test_answer_is_server_sent_events_with_usage_at_the_end() -> None:
    status, text = await ask("m", PROMPT)
    frames = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    parts = [frame["candidates"][0]["content"]["parts"] for frame in frames]
    said = "".join(part["text"] for (part,) in parts)
    assert (status, said) == (200, "The cloud")
    assert frames[-1]["candidates"][0]["finishReason"] == "STOP"
    assert frames[-1]["usageMetadata"] == {"promptTokenCount": 2, "candidatesTokenCount": 2, "totalTokenCount": 4}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "contents"),
        ([], "contents"),
        ({"contents": [{"role": "assistant", "parts": []}]}, "contents.role"),
        ({"contents": [{"role": "user", "parts": [{"text": ""}]}]}, "contents.parts.text"),
        (PROMPT | {"systemInstruction": {"parts": [{"text": ""}]}}, "contents.parts.text"),
        (PROMPT | {"generationConfig": {"stopSequences": list("abcdef")}}, "stopSequences"),
        (PROMPT | {"generationConfig": {"maxOutputTokens": 65_536}}, "maxOutputTokens"),
        (PROMPT | {"generationConfig": {"maxOutputTokens": 0}}, "maxOutputTokens"),
    ],
)
async def test_what_vertex_refuses_is_refused(body: object, field: str) -> None:
    status, text = await ask("m", body)
    assert status == 400
    assert field in json.loads(text)["error"]["message"]


async def test_a_request_without_a_token_is_refused() -> None:
    assert (await ask("m", PROMPT, {}))[0] == 401


async def test_refusals_come_as_google_writes_them() -> None:
    status, text = await ask("emulated-err429-wait7", PROMPT)
    error = json.loads(text)["error"]
    assert (status, error["status"], error["details"][0]["retryDelay"]) == (429, "RESOURCE_EXHAUSTED", "7s")
