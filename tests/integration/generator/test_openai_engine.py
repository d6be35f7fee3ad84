"""Tests of the engine ``openai`` with a real HTTP server that answers well, badly, or not at all."""

import asyncio
import json
import socket
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from schemas.requests import Message, Sampling
from schemas.stream import Speculation, Usage
from services.generator.engines import make, openai, upstream_metrics
from services.generator.engines.chat_completions import client
from services.runtime import metrics
from services.runtime.errors import UserError
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job
from tests.integration.generator.upstream import (
    DONE,
    breaks_off,
    delta,
    event,
    falls_silent,
    refuses,
    running_upstream,
    says,
    sends,
    stays_open,
)
from tests.support.waiting import until

PATIENCE_S = 30


@pytest.fixture
async def upstream():
    async with running_upstream() as it:
        yield it


@pytest.fixture
def patient(monkeypatch):
    """Make the engine keep idle connections for a long time, so that it can reuse them even if the machine stalls."""
    monkeypatch.setattr(client, "END_OF_STREAM_TIMEOUT_S", 30.0)
    monkeypatch.setattr(openai, "KEEPALIVE_S", 60.0)


@asynccontextmanager
async def engine(address, **env):
    it = make("openai", {"RAILBUS_UPSTREAM_URL": address, **env})
    try:
        async with asyncio.timeout(PATIENCE_S):
            await it.start()
        yield it
    finally:
        await it.close()


def job(text="Hi", model="small", **sampling):
    return Job(
        request_id="r",
        run="x",
        model=model,
        messages=(Message(role="user", content=text),),
        sampling=Sampling(**sampling),
    )


async def answer(it, asked=None):
    async with asyncio.timeout(PATIENCE_S):
        return [item async for item in it.generate(asked or job())]


async def failure(it, asked=None):
    with pytest.raises(EngineError) as caught:
        await answer(it, asked)
    return caught.value


async def test_an_answer(upstream):
    upstream.script = says("Hel", "lo", usage={"prompt_tokens": 5, "completion_tokens": 2})
    async with engine(upstream.address, RAILBUS_UPSTREAM_KEY="sk-1") as it:
        *steps, done = await answer(it, job(max_tokens=7, seed=3))
        assert it.stats().running == 0
    assert steps == [EngineStep(text="Hel"), EngineStep(text="lo")]
    assert isinstance(done, GenerationResult)
    assert (done.finish_reason, done.usage) == ("stop", Usage(prompt_tokens=5, completion_tokens=2))
    assert upstream.headers[-1]["Authorization"] == "Bearer sk-1"
    assert upstream.headers[-1]["Accept-Encoding"] == "identity", "compression holds text back"
    body = upstream.bodies[0]
    assert (body["model"], body["max_tokens"], body["seed"], body["stream"]) == ("small", 7, 3, True)


async def test_the_first_listed_model_is_the_default(upstream):
    upstream.models = ["first", "second"]
    async with engine(upstream.address) as it:
        assert (it.model, it.resolve("default"), it.resolve("second")) == ("first", "first", "second")


async def test_a_named_model_needs_no_list(upstream):
    upstream.models_status = 404
    async with engine(upstream.address, RAILBUS_MODEL="mine") as it:
        assert it.resolve("default") == "mine"


@pytest.mark.parametrize(
    ("status", "models", "message"),
    [(401, ["a"], "set RAILBUS_UPSTREAM_KEY"), (404, ["a"], "check RAILBUS_UPSTREAM_URL"), (200, [], "lists no model")],
)
async def test_a_list_that_does_not_help(upstream, status, models, message):
    upstream.models, upstream.models_status = models, status
    with pytest.raises(UserError, match=message):
        async with engine(upstream.address):
            pass


async def test_a_list_that_is_not_utf_8_does_not_help():
    async def list_models(_):
        return web.Response(body=b'{"data": [{"id": "\xff"}]}')

    app = web.Application()
    app.add_routes([web.get("/v1/models", list_models)])
    async with TestServer(app) as server:
        with pytest.raises(UserError, match="lists no model"):
            async with engine(str(server.make_url("/"))):
                pass


async def test_an_upstream_that_comes_later_is_waited_for(upstream, caplog):
    it = make("openai", {"RAILBUS_UPSTREAM_URL": f"http://127.0.0.1:{unused_port()}"})
    starting = asyncio.create_task(it.start())
    waits = "upstream at RAILBUS_UPSTREAM_URL: the upstream cannot be reached; waiting"
    await until(lambda: waits in caplog.messages, "it says that it waits")
    await asyncio.sleep(0.5)
    assert not starting.done()
    assert caplog.messages.count(waits) == 1
    it._base = f"{upstream.address}/v1"
    async with asyncio.timeout(PATIENCE_S):
        await starting
    assert it.model == "small"
    await it.close()


@pytest.mark.parametrize("status", [429, 503])
async def test_an_upstream_that_is_not_ready_is_waited_for(upstream, status, caplog):
    upstream.models_status = status
    it = make("openai", {"RAILBUS_UPSTREAM_URL": upstream.address})
    starting = asyncio.create_task(it.start())
    waits = f"upstream at RAILBUS_UPSTREAM_URL: the upstream answered {status}; waiting"
    await until(lambda: starting.done() or waits in caplog.messages, "it says that it waits")
    upstream.models_status = 200
    async with asyncio.timeout(PATIENCE_S):
        await starting
    assert it.model == "small"
    await it.close()


@pytest.mark.usefixtures("patient")
async def test_connections_are_used_again(upstream):
    async with engine(upstream.address) as it:
        for _ in range(5):
            await answer(it)
    assert len(upstream.connections) == 1


@pytest.mark.usefixtures("patient")
async def test_connections_are_bounded(upstream):
    upstream.script = says("a", "b", gap_s=0.02)
    async with engine(upstream.address, RAILBUS_UPSTREAM_CONNECTIONS="3") as it:
        assert it.capacity == 3
        await asyncio.gather(*(answer(it) for _ in range(9)))
    assert len(upstream.connections) == 3


async def test_vllm_tells_its_drafting(upstream):
    metrics = {
        "queue_time_ms": 0.0,
        "speculative_decoding": {
            "acceptance_histogram": [1, 2, 3], "num_spec_steps": 6,
            "num_accepted_draft_tokens": 8, "num_draft_tokens": 12,
        },
    }  # fmt: skip
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    upstream.script = says("a", tail=[event({"choices": [], "usage": usage, "metrics": metrics})])
    async with engine(upstream.address) as it:
        done = (await answer(it))[-1]
    assert done.speculation == Speculation(steps=6, drafted=12, accepted=8, accepted_by_position=(5, 3))
    assert done.usage.cached_tokens == 4


async def test_the_totals_of_an_upstream_that_comes_later_are_exported(upstream, monkeypatch):
    monkeypatch.setattr(upstream_metrics, "POLL_INTERVAL_S", 0.05)
    async with engine(f"http://127.0.0.1:{unused_port()}", RAILBUS_MODEL="small") as it:
        metrics.UPSTREAM_DRAFTED.set(0)
        it._metrics._url = f"{upstream.address}/metrics"
        await until(lambda: metrics.UPSTREAM_DRAFTED._value.get() == 120, "its totals are exported")


async def test_exact_step_counts(upstream):
    upstream.script = sends(
        event(delta("one two", usage={"prompt_tokens": 3, "completion_tokens": 2})),
        event(delta(" three four five", finish="length", usage={"prompt_tokens": 3, "completion_tokens": 5})),
        DONE,
    )
    async with engine(upstream.address, RAILBUS_UPSTREAM_STEP_USAGE="on") as it:
        *steps, done = await answer(it)
    assert [step.tokens for step in steps] == [2, 3]
    assert done.finish_reason == "length"
    assert upstream.bodies[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


async def test_a_server_that_knows_no_stream_options_is_asked_without(upstream):
    plain = says("ok")

    async def script(request, body):
        if "stream_options" in body:
            return await refuses(400, b'{"error":{"message":"Unrecognized request argument: stream_options"}}')()
        return await plain(request, body)

    upstream.script = script
    async with engine(upstream.address) as it:
        assert (await answer(it))[0] == EngineStep(text="ok")
        done = (await answer(it))[-1]
    assert ["stream_options" in body for body in upstream.bodies] == [True, False, False]
    assert done.usage == Usage(completion_tokens=1)


async def test_a_refusal_that_repeats_the_body_does_not_end_token_counts(upstream):
    """If an error message repeats the request's body, the engine still asks for token counts in later requests.

    The repeated body contains ``stream_options``. The engine stops asking for token counts only if an error names this
    field and the same request succeeds without it.
    """

    async def script(_, body):
        return web.json_response({"error": {"message": f"1 validation error: {body}"}}, status=400)

    upstream.script = script
    async with engine(upstream.address) as it:
        assert (await failure(it)).error_class == "bad_request"
        upstream.script = says("ok", usage={"prompt_tokens": 3, "completion_tokens": 1})
        done = (await answer(it))[-1]
    assert "stream_options" in upstream.bodies[-1]
    assert done.usage == Usage(prompt_tokens=3, completion_tokens=1)


@pytest.mark.parametrize(
    ("status", "error_class", "retryable"),
    [(400, "bad_request", False), (401, "auth", True), (404, "bad_request", False), (429, "overloaded", True),
     (500, "unavailable", True), (503, "unavailable", True), (504, "timeout", True)],
)  # fmt: skip
async def test_refusals(upstream, status, error_class, retryable):
    upstream.script = refuses(status, b'{"error":{"message":"the prompt was: Hi","type":"some_error"}}')
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == (error_class, retryable)
    assert str(error) == f"the upstream answered {status} (some_error)"


async def test_redirects_are_not_followed(upstream):
    upstream.script = refuses(307, Location=f"{upstream.address}/v1/elsewhere")
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("internal", True)
    assert "redirects are not followed" in str(error)
    assert len(upstream.bodies) == 1


async def test_a_prompt_that_is_too_long_is_reported_with_its_numbers(upstream):
    said = {"error": {"message": "This model's maximum context length is 64 tokens. However, you requested 99 tokens."}}
    upstream.script = refuses(400, json.dumps(said).encode())
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert str(error) == "the prompt is too long: 99 tokens, the limit is 64 tokens"


async def test_a_refusal_that_comes_in_pieces_is_read_whole(upstream):
    said = {"error": {"message": "This model's maximum context length is 64 tokens. However, you requested 99 tokens."}}

    async def script(request, body):
        told = b'{"error":{"message":"Unrecognized request argument: stream_options"}}'
        if "stream_options" not in body:
            told = json.dumps(said).encode()
        response = web.StreamResponse(status=400)
        await response.prepare(request)
        for piece in (told[:20], told[20:]):
            await response.write(piece)
            await asyncio.sleep(0.05)
        return response

    upstream.script = script
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert str(error) == "the prompt is too long: 99 tokens, the limit is 64 tokens"


async def test_a_refusal_whose_body_never_ends_is_a_refusal(upstream):
    async def script(request, _):
        response = web.StreamResponse(status=429)
        await response.prepare(request)
        await response.write(b"{")
        await asyncio.sleep(60)
        return response

    upstream.script = script
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("overloaded", True)


async def test_an_unreachable_upstream_is_an_error():
    async with engine(f"http://127.0.0.1:{unused_port()}", RAILBUS_MODEL="m") as it:
        error = await failure(it)
        assert it.stats().running == 0
    assert (error.error_class, error.retryable, str(error)) == ("unavailable", True, "the upstream cannot be reached")


async def test_a_connection_torn_in_the_middle(upstream):
    read = asyncio.Event()
    upstream.script = breaks_off("one", "two", when=read)
    async with engine(upstream.address) as it:
        items = it.generate(job())
        assert [await anext(items), await anext(items)] == [EngineStep(text="one"), EngineStep(text="two")]
        read.set()
        with pytest.raises(EngineError, match="the upstream closed the connection") as caught:
            await anext(items)
    assert (caught.value.error_class, caught.value.retryable) == ("unavailable", True)


async def test_a_prompt_that_the_upstream_dies_of_is_sent_once(upstream, monkeypatch):
    monkeypatch.setattr(client, "STALE_CONNECTION_S", 0.1)

    async def script(request, _):
        await asyncio.sleep(0.3)
        request.transport.abort()
        return web.Response()

    upstream.script = script
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("unavailable", True)
    assert len(upstream.bodies) == 1


async def test_a_stream_that_ends_without_an_end(upstream):
    upstream.script = sends(event(delta("one")))
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("unavailable", True)


async def test_an_end_without_done_is_an_end(upstream):
    upstream.script = sends(event(delta("one", finish="stop")))
    async with engine(upstream.address) as it:
        assert (await answer(it))[0] == EngineStep(text="one")


async def test_an_error_in_the_stream(upstream):
    upstream.script = sends(event(delta("one")), event({"error": {"message": "out of memory", "code": 500}}), DONE)
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("unavailable", True)


@pytest.mark.parametrize("garbage", [b"data: {not json}\n\n", b"data: 7\n\n", b'data: {"choices": "none"}\n\n'])
async def test_garbage_in_the_stream(upstream, garbage):
    upstream.script = sends(event(delta("one")), garbage)
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("internal", True)


async def test_a_page_instead_of_a_stream(upstream):
    upstream.script = refuses(200, b"<html>Welcome to nginx!</html>")
    async with engine(upstream.address) as it:
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("unavailable", True)


async def test_what_is_not_http():
    async def gibberish(_, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(gibberish, "127.0.0.1", 0)
    async with server, engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", RAILBUS_MODEL="m") as it:
        error = await failure(it)
    assert error.retryable
    assert error.error_class in {"internal", "unavailable"}


@pytest.mark.parametrize("script", [falls_silent(headers=False), falls_silent(), falls_silent("one")])
async def test_silence_has_a_limit(upstream, script):
    upstream.script = script
    async with engine(upstream.address, RAILBUS_UPSTREAM_READ_TIMEOUT_MS="200") as it:
        begin = time.monotonic()
        error = await failure(it)
    assert (error.error_class, error.retryable) == ("timeout", True)
    assert time.monotonic() - begin > 0.15


async def test_an_answer_whose_stream_is_left_open_is_complete(upstream):
    upstream.script = stays_open(event(delta("all", finish="stop")))
    async with engine(upstream.address) as it:
        *_, done = await answer(it)
    assert isinstance(done, GenerationResult)


@pytest.mark.parametrize(
    "script", [falls_silent(headers=False), falls_silent("one"), says(*["word "] * 10_000, gap_s=0.01)]
)
async def test_an_abort_closes_the_connection(upstream, script):
    upstream.script = script
    async with engine(upstream.address) as it:

        async def run():
            async for _ in it.generate(job()):
                pass

        task = asyncio.create_task(run())
        await until(lambda: upstream.bodies, "the upstream has the request")
        await asyncio.sleep(0.15)
        assert it.stats().running == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert it.stats().running == 0
        async with asyncio.timeout(PATIENCE_S):
            await upstream.gone.wait()


async def test_leaving_the_generator_closes_the_connection(upstream):
    upstream.script = says(*["word "] * 10_000, gap_s=0.01)
    async with engine(upstream.address) as it:
        items = it.generate(job())
        assert await anext(items) == EngineStep(text="word ")
        await items.aclose()
        assert it.stats().running == 0
        async with asyncio.timeout(PATIENCE_S):
            await upstream.gone.wait()


async def test_a_kept_connection_that_went_away_is_replaced():
    """If the server closes an idle connection just when the engine reuses it, the engine sends the request again."""
    body = event(delta("ok", finish="stop")) + DONE
    served = 0

    async def once(reader, writer):
        nonlocal served
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        served += 1
        await reader.read(1)  # the next request begins; close the connection
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    async with server, engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", RAILBUS_MODEL="m") as it:
        for _ in range(3):
            assert (await answer(it))[0] == EngineStep(text="ok")
    assert served == 3


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
