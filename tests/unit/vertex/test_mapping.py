"""Between our events and Google's types."""

import pytest
from google.genai import types

from schemas.requests import Message, Sampling
from schemas.stream import Usage
from services.vertex.mapping import Answer, config, contents
from services.worker.engine import EngineError


def response(**fields: object) -> types.GenerateContentResponse:
    return types.GenerateContentResponse.model_validate(fields)


def said(text: str, **fields: object) -> types.GenerateContentResponse:
    return response(candidates=[{"content": {"role": "model", "parts": [{"text": text}]}, **fields}])


def test_turns_keep_their_order_and_system_messages_stand_apart() -> None:
    system, turns = contents(
        [
            Message(role="system", content="Be brief."),
            Message(role="user", content="a"),
            Message(role="assistant", content="b"),
            Message(role="system", content="Be kind."),
            Message(role="user", content="c"),
        ]
    )
    assert system == "Be brief.\n\nBe kind."
    assert [(turn.role, turn.parts[0].text) for turn in turns if turn.parts] == [
        ("user", "a"),
        ("model", "b"),
        ("user", "c"),
    ]


def test_system_messages_alone_are_the_prompt() -> None:
    system, turns = contents([Message(role="system", content="Say hello.")])
    assert system is None
    assert [turn.role for turn in turns] == ["user"]


def test_sampling_is_taken_over() -> None:
    sampling = Sampling(max_tokens=7, temperature=0.5, top_p=0.9, seed=2**32 - 1, stop=("x",))
    how = config(sampling, "s", 0)
    assert (how.max_output_tokens, how.temperature, how.top_p, how.stop_sequences) == (7, 0.5, 0.9, ["x"])
    assert how.seed is not None
    assert 0 <= how.seed < 2**31
    assert how.thinking_config == types.ThinkingConfig(thinking_budget=0)
    assert config(sampling, None, -1).thinking_config is None


def test_more_stop_strings_than_the_api_takes_are_refused() -> None:
    with pytest.raises(EngineError, match="at most 5"):
        config(Sampling(stop=("a", "b", "c", "d", "e", "f")), None, 0)


def test_answer_ends_with_its_reason_and_usage() -> None:
    answer = Answer()
    step = answer.read(said("hello there"))
    assert step is not None
    assert step.text == "hello there"
    metadata = {
        "promptTokenCount": 5,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 3,
        "cachedContentTokenCount": 1,
    }
    assert answer.read(response(candidates=[{"finishReason": "MAX_TOKENS"}], usageMetadata=metadata)) is None
    done = answer.end()
    assert done.finish_reason == "length"
    assert done.usage == Usage(prompt_tokens=5, completion_tokens=5, cached_tokens=1)


def test_thoughts_and_empty_parts_are_no_text() -> None:
    answer = Answer()
    thought = {"content": {"parts": [{"text": "hm", "thought": True}, {"text": ""}]}}
    assert answer.read(response(candidates=[thought])) is None
    assert answer.read(response(candidates=[{}])) is None
    assert answer.read(response()) is None


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
        Answer().read(response(**blocked))
    assert (caught.value.error_class, caught.value.retryable) == ("safety_block", False)


def test_broken_off_stream_is_no_end() -> None:
    answer = Answer()
    answer.read(said("half an ans"))
    with pytest.raises(EngineError) as caught:
        answer.end()
    assert (caught.value.error_class, caught.value.retryable) == ("unavailable", True)


def test_unknown_end_is_an_error() -> None:
    answer = Answer()
    answer.read(response(candidates=[{"finishReason": "MALFORMED_FUNCTION_CALL"}]))
    with pytest.raises(EngineError, match="MALFORMED_FUNCTION_CALL"):
        answer.end()
