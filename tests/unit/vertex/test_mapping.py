"""Test the conversion between Railbus's types and the JSON of Vertex AI."""

import json

import pytest

from schemas.requests import Message, Sampling
from schemas.stream import Usage
from services.vertex.mapping import GenerateContentParser, request_body
from services.worker.engine import EngineError, EngineStep


def body(messages: list[Message], sampling: Sampling | None = None, thinking: int = 0) -> dict[str, object]:
    return request_body(messages, sampling or Sampling(), thinking_tokens=thinking, max_output_tokens=65_535)


def read(answer: GenerateContentParser, **frame: object) -> EngineStep | None:
    return answer.read(json.dumps(frame))


def said(text: str, **fields: object) -> dict[str, object]:
    return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, **fields}]}


def test_turns_keep_their_order_and_system_messages_stand_apart() -> None:
    conversation = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="system", content="Be kind."),
        Message(role="user", content="c"),
    ]
    asked = body(conversation)
    assert asked["systemInstruction"] == {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]}
    assert asked["contents"] == [
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "model", "parts": [{"text": "b"}]},
        {"role": "user", "parts": [{"text": "c"}]},
    ]


def test_system_messages_alone_are_the_prompt() -> None:
    asked = body([Message(role="system", content="Say hello.")])
    assert asked["contents"] == [{"role": "user", "parts": [{"text": "Say hello."}]}]
    assert "systemInstruction" not in asked


def test_messages_without_text_are_left_out() -> None:
    conversation = [
        Message(role="system", content=""),
        Message(role="user", content="a"),
        Message(role="assistant", content=""),
        Message(role="user", content="b"),
    ]
    asked = body(conversation)
    assert asked["contents"] == [
        {"role": "user", "parts": [{"text": "a"}]},
        {"role": "user", "parts": [{"text": "b"}]},
    ]
    assert "systemInstruction" not in asked


def test_a_conversation_without_text_is_refused() -> None:
    with pytest.raises(EngineError, match="needs at least one message with text") as caught:
        body([Message(role="system", content=""), Message(role="user", content="")])
    assert (caught.value.error_class, caught.value.retryable) == ("bad_request", False)


@pytest.mark.parametrize(("asked", "sent"), [(131_072, 65_535), (65_535, 65_535), (65_534, 65_534)])
def test_no_longer_answer_is_asked_for_than_the_api_accepts(asked: int, sent: int) -> None:
    config = body([Message(role="user", content="a")], Sampling(max_tokens=asked))["generationConfig"]
    assert isinstance(config, dict)
    assert config["maxOutputTokens"] == sent


def test_sampling_is_taken_over() -> None:
    sampling = Sampling(max_tokens=7, temperature=0.5, top_p=0.9, seed=2**32 - 1, stop=("x",))
    assert body([Message(role="user", content="a")], sampling)["generationConfig"] == {
        "maxOutputTokens": 7,
        "temperature": 0.5,
        "topP": 0.9,
        "seed": 2**31 - 1,
        "stopSequences": ["x"],
        "thinkingConfig": {"thinkingBudget": 0},
    }


def test_what_is_not_asked_for_is_left_to_the_model() -> None:
    config = body([Message(role="user", content="a")], thinking=-1)["generationConfig"]
    assert isinstance(config, dict)
    assert config.keys() == {"maxOutputTokens", "temperature", "topP"}


def test_more_stop_strings_than_the_api_takes_are_refused() -> None:
    with pytest.raises(EngineError, match="at most 5"):
        body([Message(role="user", content="a")], Sampling(stop=("a", "b", "c", "d", "e", "f")))


def test_answer_ends_with_its_reason_and_usage() -> None:
    answer = GenerateContentParser()
    step = read(answer, **said("hello there"), modelVersion="x", somethingNew={"a": 1})
    assert step is not None
    assert step.text == "hello there"
    metadata = {
        "promptTokenCount": 5,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 3,
        "cachedContentTokenCount": 1,
    }
    assert read(answer, candidates=[{"finishReason": "MAX_TOKENS"}], usageMetadata=metadata) is None
    done = answer.end()
    assert done.finish_reason == "length"
    assert done.usage == Usage(prompt_tokens=5, completion_tokens=5, cached_tokens=1)


def test_the_prompts_tokens_are_estimated_until_they_are_told() -> None:
    answer = GenerateContentParser(prompt_chars=40)
    first = read(answer, **said("hello"))
    later = read(answer, **said(" there"), usageMetadata={"promptTokenCount": 7})
    assert first is not None
    assert later is not None
    assert (first.prompt_tokens, later.prompt_tokens) == (10, 7)


def test_thoughts_and_empty_parts_are_no_text() -> None:
    answer = GenerateContentParser()
    parts = [{"text": "hm", "thought": True}, {"text": ""}, {"functionCall": {}}]
    assert read(answer, candidates=[{"content": {"parts": parts}}]) is None
    assert read(answer, candidates=[{}]) is None
    assert read(answer) is None


@pytest.mark.parametrize(
    "blocked",
    [
        {"promptFeedback": {"blockReason": "SAFETY"}},
        {"candidates": [{"finishReason": "SAFETY"}]},
        {"candidates": [{"finishReason": "RECITATION"}]},
    ],
)
def test_filters_block_for_good(blocked: dict[str, object]) -> None:
    with pytest.raises(EngineError) as caught:
        read(GenerateContentParser(), **blocked)
    assert (caught.value.error_class, caught.value.retryable) == ("safety_block", False)


@pytest.mark.parametrize("data", ["", "[]", "{", '{"candidates": 7}', '{"candidates": [{"content": {"parts": [7]}}]}'])
def test_what_is_no_frame_is_an_error_that_does_not_repeat_it(data: str) -> None:
    with pytest.raises(EngineError) as caught:
        GenerateContentParser().read(data)
    assert (caught.value.error_class, caught.value.retryable) == ("internal", True)


def test_broken_off_stream_is_no_end() -> None:
    answer = GenerateContentParser()
    read(answer, **said("half an ans"))
    with pytest.raises(EngineError) as caught:
        answer.end()
    assert (caught.value.error_class, caught.value.retryable) == ("unavailable", True)


def test_unknown_end_is_an_error() -> None:
    answer = GenerateContentParser()
    read(answer, candidates=[{"finishReason": "MALFORMED_FUNCTION_CALL"}])
    with pytest.raises(EngineError, match="MALFORMED_FUNCTION_CALL"):
        answer.end()
