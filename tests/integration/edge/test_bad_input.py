"""Test that bad input gets one clear error that names the field, and that the edge then continues to serve."""

import asyncio
from io import BytesIO

import aiohttp
import pytest

from services.runtime.classes.service_classes import ServiceClasses
from tests.integration.edge.lab import ASK, PATIENCE_S

HI = [{"role": "user", "content": "hi"}]

BODIES = {
    "no messages": ({}, 400, "messages"),
    "messages of the wrong type": ({"messages": "hi"}, 400, "messages"),
    "no message": ({"messages": []}, 400, "messages"),
    "unknown role": ({"messages": [{"role": "robot", "content": "hi"}]}, 400, "messages[0].role"),
    "content of the wrong type": ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        400,
        "messages[0].content[0].type",
    ),
    "a long message": ({"messages": [{"role": "user", "content": "x" * 262_145}]}, 400, "messages[0].content"),
    "too hot": ({"messages": HI, "temperature": 3}, 400, "temperature"),
    "temperature as text": ({"messages": HI, "temperature": "hot"}, 400, "temperature"),
    "no tokens": ({"messages": HI, "max_tokens": 0}, 400, "max_tokens"),
    "half a token": ({"messages": HI, "max_tokens": 1.5}, 400, "max_tokens"),
    "two limits": ({"messages": HI, "max_tokens": 1, "max_completion_tokens": 2}, 400, "max_tokens"),
    "stream as text": ({"messages": HI, "stream": "yes"}, 400, "stream"),
    "an empty stop": ({"messages": HI, "stop": ""}, 400, "stop"),
    "tools": ({"messages": HI, "tools": [{"type": "function"}]}, 400, "tools"),
    "two answers": ({"messages": HI, "n": 2}, 400, "n"),
    "a JSON schema": ({"messages": HI, "response_format": {"type": "json_object"}}, 400, "response_format"),
    "model of the wrong type": ({"messages": HI, "model": 5}, 400, "model"),
    "a misspelt safety setting": ({"messages": HI, "railbus": {"delivry": "gated"}}, 400, "railbus"),
    "a misspelt one inside": ({"messages": HI, "railbus": {"delivery": {"mod": "gated"}}}, 400, "railbus.delivery"),
    "an unknown delivery": ({"messages": HI, "railbus": {"delivery": "later"}}, 400, "railbus.delivery"),
    "a negative deadline": (
        {"messages": HI, "railbus": {"deadlines": {"ttft_ms": -1}}},
        400,
        "railbus.deadlines.ttft_ms",
    ),
}


@pytest.fixture
async def url(lab):
    return await lab.edge()


async def post(lab, url, **options):
    async with lab.http.post(f"{url}/v1/chat/completions", **options) as response:
        return response.status, await response.json()


async def still_there(lab, url):
    request, _ = await lab.ask(url)
    assert request.messages[0].content == "hello"


async def test_every_wrong_body_names_its_field(lab, url):
    for name, (body, status, param) in BODIES.items():
        for stream in (False, True):
            wrong = {"stream": stream} | body
            got, answer = await post(lab, url, json=wrong)
            assert got == status, name
            assert answer["error"]["param"] == param, name
            assert answer["error"]["type"] == "invalid_request_error"
    await still_there(lab, url)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"a": "\\ud800"}', b"[" * 5_000, b"NaN"])
async def test_malformed_json(lab, url, raw):
    status, answer = await post(lab, url, data=raw, headers={"Content-Type": "application/json"})
    assert status == 400
    assert answer["error"]["code"] == "invalid_json"


async def test_a_prompt_of_two_megabytes(lab, url):
    raw = b'{"messages": [{"role": "user", "content": "%b"}]}' % (b"x" * 2_000_000)
    try:
        status, answer = await post(lab, url, data=BytesIO(raw), headers={"Content-Type": "application/json"})
    except aiohttp.ClientOSError:  # the server may close before the client has sent it all
        pass
    else:
        assert status == 413
        assert answer["error"]["code"] == "request_too_large"
    await still_there(lab, url)


async def test_more_than_the_log_takes_in_many_messages(lab, url):
    body = {"messages": [{"role": "user", "content": "\u00e9" * 170_000}] * 3}
    raw = str(body).replace("'", '"').encode()
    assert len(raw) < 1_048_576
    status, answer = await post(lab, url, data=raw, headers={"Content-Type": "application/json"})
    assert status == 413
    assert answer["error"]["code"] == "request_too_large"


async def test_only_json(lab, url):
    status, answer = await post(lab, url, data="hello", headers={"Content-Type": "text/plain"})
    assert status == 415
    assert answer["error"]["code"] == "not_json"


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/nothing", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET,HEAD"),
        ("POST", "/v1/stream", 405, "GET"),
        ("POST", "/", 405, "GET,HEAD"),
        ("GET", "/v1/stream", 400, None),
    ],
)
async def test_unknown_paths_and_methods(lab, url, method, path, status, allow):
    async with lab.http.request(method, url + path) as response:
        assert response.status == status
        assert response.headers.get("Allow") == allow
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_unknown_parameters_are_named_in_a_header(lab, url):
    asking = asyncio.create_task(post_headers(lab, url, ASK | {"top_k": 5, "min_p": 0.1, "user": "me"}))
    await lab.answer("x")
    assert (await asking)["X-Railbus-Ignored"] == "min_p, top_k"


async def test_a_class_is_chosen_by_header_or_tier_and_is_on_the_log(lab, url):
    for chosen, tier, name, lane in (("voice", "auto", "voice", "interactive"), (None, "flex", None, "batch")):
        headers = {} if chosen is None else {"X-Railbus-Class": chosen}
        asking = asyncio.create_task(
            lab.http.post(f"{url}/v1/chat/completions", json=ASK | {"service_tier": tier}, headers=headers)
        )
        request = await lab.answer("x")
        async with await asking as response:
            assert response.status == 200
        assert (request.service_class, request.lane) == (name, lane)
        assert request.deadlines == ServiceClasses().of(name, lane).deadlines


async def test_an_unknown_class_is_one_clear_error(lab, url):
    status, answer = await post(lab, url, json=ASK, headers={"X-Railbus-Class": "gold"})
    assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unknown_class", "X-Railbus-Class")
    assert "the classes are batch, chat, voice" in answer["error"]["message"]


async def test_http_1_0(lab, url):
    """Over HTTP/1.0, which has no chunked body, the edge closes the connection at the end of the stream."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"stream": true, "messages": [{"role": "user", "content": "hi"}]}'
    head = f"POST /v1/chat/completions HTTP/1.0\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    await lab.answer("a", "b")
    data = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    assert data.count(b'"content":"') == 2
    assert data.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1"}, 400),
        ({}, 400),
    ],
)
async def test_foreign_pages_are_refused(lab, url, headers, status):
    got, _ = await post(lab, url, json={}, headers=headers)
    assert got == status


async def post_headers(lab, url, body):
    async with lab.http.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.status == 200
        return response.headers
