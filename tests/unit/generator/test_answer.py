"""What counts as a step of a streamed answer, and as its end."""

import json

import pytest

from schemas.requests import Message, Sampling
from schemas.stream import Usage
from services.generator.engines.answer import Answer, Endpoint, body_of
from services.generator.engines.frames import parse
from services.worker.engine import EngineError, Job, Step


def frame(delta=None, *, finish=None, **rest):
    return parse(json.dumps({"choices": [{"delta": delta, "finish_reason": finish}], **rest}).encode())


def tail(**rest):
    return parse(json.dumps({"choices": [], **rest}).encode())


@pytest.mark.parametrize(
    "delta", [None, {}, {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}]
)
def test_only_text_is_a_step(delta):
    assert Answer(0.0).read(frame(delta), 1.0) is None


def test_the_times_of_an_answer():
    answer = Answer(10.0)
    answer.read(frame({"role": "assistant"}), 10.1)
    assert answer.read(frame({"content": "a"}), 10.25) == Step(text="a")
    assert answer.read(frame({"content": "b"}), 10.5) == Step(text="b")
    assert not answer.complete
    answer.read(frame({}, finish="stop"), 11.0)
    assert answer.complete
    done = answer.end(said_done=True)
    assert done.timings.prefill_ms == pytest.approx(250)
    assert done.timings.decode_ms == pytest.approx(250)
    assert done.usage == Usage(completion_tokens=2), "counted here, because the server told nothing"


@pytest.mark.parametrize(
    ("told", "reason"), [("stop", "stop"), ("length", "length"), ("eos", "stop"), ("tool_calls", "stop")]
)
def test_finish_reasons(told, reason):
    answer = Answer(0.0)
    answer.read(frame({"content": "a"}, finish=told), 1.0)
    assert answer.end(said_done=False).finish_reason == reason


@pytest.mark.parametrize(
    ("told", "error_class"), [("content_filter", "safety_block"), ("abort", "unavailable"), ("error", "internal")]
)
def test_ends_that_are_none(told, error_class):
    with pytest.raises(EngineError) as caught:
        Answer(0.0).read(frame({"content": "a"}, finish=told), 1.0)
    assert caught.value.error_class == error_class
    assert caught.value.retryable == (error_class != "safety_block")


def test_usage_comes_with_the_last_frame():
    answer = Answer(0.0)
    answer.read(frame({"content": "a"}, finish="stop"), 1.0)
    answer.read(
        tail(usage={"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}}), 1.0
    )
    assert answer.end(said_done=True).usage == Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=8)


def test_usage_in_every_frame_counts_the_tokens_of_each_step():
    answer = Answer(0.0)
    told = [answer.read(frame({"content": "x"}, usage={"completion_tokens": total}), 1.0) for total in (1, 4, 4, 9)]
    assert [step.tokens for step in told] == [1, 3, 0, 5]


def test_the_servers_own_times_tell_the_queue():
    answer = Answer(0.0)
    answer.read(frame({"content": "a"}, finish="stop"), 0.1)
    answer.read(tail(timings={"prompt_ms": 60.0}), 0.1)
    timings = answer.end(said_done=True).timings
    assert (timings.queue_ms, timings.prefill_ms) == (pytest.approx(40), pytest.approx(60))
    answer.read(tail(metrics={"queue_time_ms": 30.0}), 0.1)
    timings = answer.end(said_done=True).timings
    assert (timings.queue_ms, timings.prefill_ms) == (pytest.approx(30), pytest.approx(70))


def test_a_stream_that_breaks_off_is_no_answer():
    answer = Answer(0.0)
    answer.read(frame({"content": "a"}), 1.0)
    with pytest.raises(EngineError, match="before the answer was complete") as caught:
        answer.end(said_done=False)
    assert (caught.value.error_class, caught.value.retryable) == ("unavailable", True)
    assert answer.end(said_done=True).finish_reason == "stop", "some servers say no reason"


def test_a_stream_that_says_nothing_and_ends_is_no_answer():
    with pytest.raises(EngineError, match="before the answer was complete"):
        Answer(0.0).end(said_done=True)


def job(**sampling):
    messages = (Message(role="system", content="Be brief."), Message(role="user", content="Hi"))
    return Job(request_id="r", run="x", model="m", messages=messages, sampling=Sampling(**sampling))


def test_the_body_asks_for_what_was_asked():
    body = json.loads(
        body_of(job(max_tokens=9, temperature=0, top_p=0.5, seed=0, stop=("END",)), Endpoint(url=""), usage=True)
    )
    assert body == {
        "model": "m", "stream": True, "max_tokens": 9, "temperature": 0, "top_p": 0.5, "seed": 0, "stop": ["END"],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_the_body_leaves_out_what_was_not_asked():
    body = json.loads(body_of(job(), Endpoint(url=""), usage=False))
    assert body.keys() == {"model", "messages", "stream", "max_tokens", "temperature", "top_p"}


def test_exact_step_counts_are_asked_for():
    body = json.loads(body_of(job(), Endpoint(url="", step_usage=True), usage=True))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
