"""Test that the official OpenAI client works unchanged, also when a prompt is denied or text is taken back."""

import asyncio

import openai
import pytest

from schemas.requests import Deadlines
from schemas.stream import Cutover, Failed, Recall
from services.edge.http import responses
from services.edge.requests import request_service
from tests.integration.edge.lab import PATIENCE_S, deltas

MESSAGES = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def patient_status(monkeypatch):
    """Let the edge wait longer for the first op before it sends the status 200.

    A request that fails before its first op then gets the HTTP status of its error, even on a busy machine.
    """
    monkeypatch.setattr(responses, "FIRST_OP_TIMEOUT_S", PATIENCE_S)


def client(url):
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


async def test_a_stream(lab):
    async with client(await lab.edge()) as ai:
        answering = asyncio.create_task(lab.answer("Hello ", "w\u00f6rld ", "\U0001f600"))
        stream = await ai.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, temperature=0.1,
            max_completion_tokens=7, top_p=0.9, seed=-1, stop=["END"], user="u",
        )  # fmt: skip
        parts = [part async for part in stream]
        request = await answering
    assert (
        "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == "Hello w\u00f6rld \U0001f600"
    )
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-2].choices[0].finish_reason == "stop"
    assert parts[-1].usage.completion_tokens == 3
    assert {part.id for part in parts} == {f"chatcmpl-{request.request_id}"}
    assert {part.model for part in parts} == {"tiny"}
    assert [message.role for message in request.messages] == ["system", "user"]
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed, sampling.stop) == (
        7, 0.1, 0.9, 2**32 - 1, ("END",),
    )  # fmt: skip


async def test_in_one_piece(lab):
    async with client(await lab.edge()) as ai:
        answering = asyncio.create_task(lab.answer("Hello ", "world"))
        done = await ai.chat.completions.create(model="tiny", messages=MESSAGES)
        await answering
    assert done.choices[0].message.content == "Hello world"
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].finish_reason == "stop"
    assert done.usage.total_tokens == 7
    assert done.model == "tiny"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_synchronous_client(lab, stream):
    url = await lab.edge()

    def ask():
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as ai:
            made = ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
            if not stream:
                return made.choices[0].message.content
            return "".join(part.choices[0].delta.content or "" for part in made)

    asking = asyncio.create_task(asyncio.to_thread(ask))
    await lab.answer("Hello ", "world")
    assert await asking == "Hello world"


async def test_models(lab):
    async with client(await lab.edge()) as ai:
        answering = asyncio.create_task(lab.answer("x"))
        await ai.chat.completions.create(model="tiny", messages=MESSAGES)
        await answering
        assert [model.id async for model in ai.models.list()] == ["default", "tiny"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_404(lab, stream):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="gpt-9", messages=MESSAGES, stream=stream))
        writer = await lab.next_writer()
        message = "this model is not served here; served is 'tiny'"
        failed = Failed(**writer.voiced(), error_class="bad_request", message=message, retryable=False, param="model")
        await lab.write(failed, writer.closed("failed", message))
        with pytest.raises(openai.NotFoundError) as error:
            await asking
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"


@pytest.mark.parametrize(
    ("error_class", "status"), [("unavailable", 503), ("engine_dead", 502), ("timeout", 504), ("bad_request", 400)]
)
async def test_a_failure_before_the_first_token_has_its_status(lab, error_class, status):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
        writer = await lab.next_writer()
        failed = Failed(**writer.voiced(), error_class=error_class, message="because", retryable=True)
        await lab.write(writer.started(), failed, writer.closed("failed", "because"))
        with pytest.raises(openai.APIStatusError) as error:
            await asking
    assert error.value.status_code == status
    assert "because" in error.value.message


async def test_a_failure_in_the_middle_is_an_error_on_the_stream(lab):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
        writer = await lab.next_writer()
        await lab.write(writer.started(), writer.chunk("Half of"))
        stream = await asking
        assert (await anext(stream)).choices[0].delta.content == "Half of"
        failed = Failed(**writer.voiced(), error_class="engine_dead", message="engine died", retryable=True)
        await lab.write(failed, writer.closed("failed", "engine died"))
        with pytest.raises(openai.APIError, match="engine died"):
            await anext(stream)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_denied_prompt_ends_with_content_filter(lab, stream):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream))
        writer = await lab.next_writer(checked=True)
        await lab.write(writer.started(), writer.chunk("never seen"), writer.denied("Not here."))
        made = await asking
        if stream:
            (part,) = [part async for part in made]
            assert part.choices[0].delta.content == "Not here."
            assert part.choices[0].finish_reason == "content_filter"
            assert part.railbus["op"] == "refuse"
        else:
            assert made.choices[0].message.content == "Not here."
            assert made.choices[0].finish_reason == "content_filter"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_recalled_answer_ends_with_content_filter(lab, stream):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream))
        writer = await lab.next_writer(checked=True)
        await lab.write(
            writer.started(), writer.allowed(), writer.chunk("secret"), writer.recall(0, 6, "stop", "[gone]")
        )
        made = await asking
        if stream:
            parts = [part async for part in made]
            assert [part.choices[0].delta.content for part in parts] == ["secret", None]
            assert parts[-1].choices[0].finish_reason == "content_filter"
            assert parts[-1].railbus["op"] == "withdraw"
            assert parts[-1].railbus["rule"] == "card"
        else:
            assert made.choices[0].message.content == "[gone]"
            assert made.choices[0].finish_reason == "content_filter"
            assert made.railbus["op"] == "withdraw"


async def test_a_redaction_keeps_the_safe_text(lab):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES))
        writer = await lab.next_writer(checked=True)
        await lab.write(
            writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"), writer.chunk(" now"),
            writer.recall(5, 13), writer.finished(), writer.cleared(),
        )  # fmt: skip
        made = await asking
    assert made.choices[0].message.content == "call [gone] now"
    assert made.choices[0].finish_reason == "content_filter"


async def test_a_redaction_of_sent_text_is_a_chunk_without_text(lab):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
        writer = await lab.next_writer(checked=True)
        await lab.write(
            writer.started(), writer.allowed(), writer.chunk("call 555-0100"), writer.recall(5, 13),
            writer.chunk(" now"), writer.finished(), writer.cleared(),
        )  # fmt: skip
        parts = [part async for part in await asking]
    assert [part.choices[0].delta.content for part in parts] == ["call 555-0100", None, " now", None]
    note = parts[1].railbus
    assert (note["op"], note["start"], note["end"], note["text"]) == ("replace", 5, 13, "[gone]")
    assert (note["rule"], note["category"], note["policy_version"]) == ("card", "pii", "v1")
    assert [part.choices[0].finish_reason for part in parts] == [None, None, None, "content_filter"]


async def test_gated_text_is_redacted_before_a_naive_client_sees_it(lab):
    async with client(await lab.edge()) as ai:
        gated = {"railbus": {"delivery": "gated"}}
        asking = asyncio.create_task(
            ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True, extra_body=gated)
        )
        writer = await lab.next_writer(checked=True)
        assert writer.delivery.mode == "gated"
        await lab.write(
            writer.started(), writer.allowed(), writer.chunk("call "), writer.chunk("555-0100"), writer.recall(5, 13),
            writer.finished(), writer.cleared(),
        )  # fmt: skip
        parts = [part async for part in await asking]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == "call [gone]"
    assert parts[-1].choices[0].finish_reason == "content_filter"


async def first_half(lab, writer):
    """Write half an answer."""
    await lab.write(writer.started(), writer.chunk("half"))


async def second_attempt(lab, writer):
    """Write a cutover and the complete answer of the second attempt."""
    cutover = Cutover(**writer.common(), attempt=2, trigger="stall", seen_seq=0)
    writer.attempt, writer.seq, writer.start = 2, 0, 0
    await lab.write(cutover, writer.started("other"), writer.chunk("whole"), writer.finished(), writer.closed())


async def test_a_restart_after_text_was_sent_is_an_error(lab):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
        writer = await lab.next_writer()
        await first_half(lab, writer)
        stream = await asking
        assert (await anext(stream)).choices[0].delta.content == "half"
        await second_attempt(lab, writer)
        with pytest.raises(openai.APIError, match="restarted"):
            await anext(stream)


async def test_a_restart_can_be_a_marker_instead(lab):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(
            ai.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=True, extra_body={"railbus": {"restart": "marker"}}
            )
        )
        writer = await lab.next_writer()
        await first_half(lab, writer)
        await second_attempt(lab, writer)
        parts = [part async for part in await asking]
    assert [part.choices[0].delta.content for part in parts] == ["half", None, "whole", None]
    assert parts[1].railbus["op"] == "restart"
    assert parts[2].model == "other"


async def test_in_one_piece_a_restart_is_not_seen(lab):
    async with client(await lab.edge()) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES))
        writer = await lab.next_writer()
        await first_half(lab, writer)
        await second_attempt(lab, writer)
        made = await asking
    assert made.choices[0].message.content == "whole"
    assert made.choices[0].finish_reason == "stop"


async def test_a_request_without_a_close_ends_by_its_deadline(lab, monkeypatch):
    # On a busy machine, the log may acknowledge the request late. That must not become the error that the client gets.
    monkeypatch.setattr(request_service, "EXPIRY_MARGIN_US", int(PATIENCE_S * 1e6))
    async with client(await lab.edge()) as ai:
        short = {"railbus": {"deadlines": {"total_ms": 100}}}
        with pytest.raises(openai.APIStatusError) as error:
            await ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=False, extra_body=short)
    assert error.value.status_code == 504
    assert error.value.code == "expired"
    request = await lab.next_request()
    assert request.deadlines == Deadlines(total_ms=100)
    assert (await lab.detached(request.request_id)).reason == "error"


async def test_a_late_joiner_never_sees_what_was_withdrawn(lab):
    url = await lab.edge()
    async with client(url) as ai:
        asking = asyncio.create_task(ai.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
        writer = await lab.next_writer(checked=True)
        await lab.write(writer.started(), writer.allowed(), writer.chunk("the secret"))
        stream = await asking
        assert (await anext(stream)).choices[0].delta.content == "the secret"
        recall = writer.recall(0, 10, "stop", "[withdrawn]")
        assert isinstance(recall, Recall)
        await lab.write(recall)
        assert (await anext(stream)).choices[0].finish_reason == "content_filter"
    async with lab.http.get(f"{url}/v1/chat/completions/chatcmpl-{writer.request_id}") as response:
        data = await response.read()
    assert b"secret" not in data
    assert deltas(data) == "[withdrawn]"
