"""Test how the chunks of a streamed completion become steps and a result."""

import json

import pytest

from schemas.requests import Message, Sampling
from schemas.stream import Usage
from services.generator.engines.chat_completions.chunks import parse_chunk
from services.generator.engines.chat_completions.parser import CompletionParser, Endpoint, request_body
from services.worker.engine import EngineError, EngineStep, Job


def chunk(delta=None, *, finish=None, **rest):
    return parse_chunk(json.dumps({"choices": [{"delta": delta, "finish_reason": finish}], **rest}).encode())


def tail(**rest):
    return parse_chunk(json.dumps({"choices": [], **rest}).encode())


@pytest.mark.parametrize(
    "delta", [None, {}, {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}]
)
def test_only_text_is_a_step(delta):
    assert CompletionParser(0.0).read(chunk(delta), 1.0) is None


def test_the_times_of_an_answer():
    parser = CompletionParser(10.0)
    parser.read(chunk({"role": "assistant"}), 10.1)
    assert parser.read(chunk({"content": "a"}), 10.25) == EngineStep(text="a")
    assert parser.read(chunk({"content": "b"}), 10.5) == EngineStep(text="b")
    assert not parser.complete
    parser.read(chunk({}, finish="stop"), 11.0)
    assert parser.complete
    done = parser.end(stream_done=True)
    assert done.timings.prefill_ms == pytest.approx(250)
    assert done.timings.decode_ms == pytest.approx(250)
    assert done.usage == Usage(completion_tokens=2), "counted here, because the server told nothing"


@pytest.mark.parametrize(
    ("told", "reason"), [("stop", "stop"), ("length", "length"), ("eos", "stop"), ("tool_calls", "stop")]
)
def test_finish_reasons(told, reason):
    parser = CompletionParser(0.0)
    parser.read(chunk({"content": "a"}, finish=told), 1.0)
    assert parser.end(stream_done=False).finish_reason == reason


def test_an_empty_finish_reason_ends_nothing():
    parser = CompletionParser(0.0)
    parser.read(chunk({"content": "a"}, finish=""), 1.0)
    assert not parser.complete
    with pytest.raises(EngineError, match="before the answer was complete"):
        parser.end(stream_done=False)


@pytest.mark.parametrize(
    ("told", "error_class"), [("content_filter", "safety_block"), ("abort", "unavailable"), ("error", "internal")]
)
def test_ends_that_are_none(told, error_class):
    with pytest.raises(EngineError) as caught:
        CompletionParser(0.0).read(chunk({"content": "a"}, finish=told), 1.0)
    assert caught.value.error_class == error_class
    assert caught.value.retryable == (error_class != "safety_block")


def test_usage_comes_with_the_last_frame():
    parser = CompletionParser(0.0)
    parser.read(chunk({"content": "a"}, finish="stop"), 1.0)
    parser.read(
        tail(usage={"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}), 1.0
    )
    assert parser.end(stream_done=True).usage == Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=8)


def test_usage_in_every_frame_counts_the_tokens_of_each_step():
    parser = CompletionParser(0.0)
    told = [parser.read(chunk({"content": "x"}, usage={"completion_tokens": total}), 1.0) for total in (1, 4, 4, 9)]
    assert [step.tokens for step in told] == [1, 3, 0, 5]


def test_the_servers_own_times_tell_the_queue():
    parser = CompletionParser(0.0)
    parser.read(chunk({"content": "a"}, finish="stop"), 0.1)
    parser.read(tail(timings={"prompt_ms": 60.0}), 0.1)
    timings = parser.end(stream_done=True).timings
    assert (timings.queue_ms, timings.prefill_ms) == (pytest.approx(40), pytest.approx(60))
    parser.read(tail(metrics={"queue_time_ms": 30.0}), 0.1)
    timings = parser.end(stream_done=True).timings
    assert (timings.queue_ms, timings.prefill_ms) == (pytest.approx(30), pytest.approx(70))


def test_a_stream_that_breaks_off_is_no_answer():
    parser = CompletionParser(0.0)
    parser.read(chunk({"content": "a"}), 1.0)
    with pytest.raises(EngineError, match="before the answer was complete") as caught:
        parser.end(stream_done=False)
    assert (caught.value.error_class, caught.value.retryable) == ("unavailable", True)
    assert parser.end(stream_done=True).finish_reason == "stop", "some servers say no reason"


def test_a_stream_that_says_nothing_and_ends_is_no_answer():
    with pytest.raises(EngineError, match="before the answer was complete"):
        CompletionParser(0.0).end(stream_done=True)


def job(**sampling):
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="Hi"))
    return Job(request_id="r", run="x", model="m", messages=messages, sampling=Sampling(**sampling))


def test_the_body_asks_for_what_was_asked():
    body = json.loads(
        request_body(job(max_tokens=9, temperature=0, top_p=0.5, seed=0, stop=("END",)), Endpoint(url=""), usage=True)
    )
    assert body == {
        "model": "m", "stream": True, "max_tokens": 9, "temperature": 0, "top_p": 0.5, "seed": 0, "stop": ["END"],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_the_body_leaves_out_what_was_not_asked():
    body = json.loads(request_body(job(), Endpoint(url=""), usage=False))
    assert body.keys() == {"model", "messages", "stream", "max_tokens", "temperature", "top_p"}


def test_further_fields_are_sent_and_replace_none_of_ours():
    endpoint = Endpoint(url="", extra={"cache_prompt": False, "model": "other", "stream": False})
    body = json.loads(request_body(job(), endpoint, usage=False))
    assert (body["cache_prompt"], body["model"], body["stream"]) == (False, "m", True)


def test_exact_step_counts_are_asked_for():
    body = json.loads(request_body(job(), Endpoint(url="", step_usage=True), usage=True))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
