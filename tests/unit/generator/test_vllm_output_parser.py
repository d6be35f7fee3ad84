"""Test that vLLM's outputs become steps and a result, and that an error at vLLM's start becomes one sentence."""

from types import SimpleNamespace as Told

import pytest

from schemas.requests import Sampling
from schemas.stream import Speculation, Timings
from services.generator.engines.vllm.engine import sampling_arguments
from services.generator.engines.vllm.output_parser import OutputParser, timings_of
from services.generator.engines.vllm.start_errors import MAX_REASON_CHARS, start_failure_reason
from services.worker.engine import EngineError


def output(tokens, text="x", *, finish=None, drafts=None, metrics=None, cached=None):
    completion = Told(token_ids=[7] * tokens, text=text, finish_reason=finish, spec_decode_metrics=drafts)
    return Told(outputs=[completion], finished=finish is not None, metrics=metrics, num_cached_tokens=cached)


def pairs(parser, *outputs):
    return [(step.tokens, step.drafted, step.accepted) for each in outputs if (step := parser.step(each)) is not None]


def test_without_drafts_there_are_only_tokens():
    parser = OutputParser(9)
    last = output(1, finish="length", cached=4)
    assert pairs(parser, output(1), output(1), last) == [(1, 0, 0)] * 3
    done = parser.done(last)
    assert (done.finish_reason, done.speculation) == ("length", None)
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.cached_tokens) == (9, 3, 4)


def test_the_steps_add_up_to_what_the_end_says():
    drafts = Told(histogram=[1, 0, 1, 0, 1], num_draft_tokens=12)  # kept 0, 2 and 4 of 4
    parser = OutputParser(9, drafted=4, speculative=True)
    last = output(3, finish="stop", drafts=drafts)  # kept 4, and the answer ended in the middle of them
    said = pairs(parser, output(1), output(3), output(1), last)
    assert said == [(1, 0, 0), (3, 4, 2), (1, 4, 0), (3, 4, 4)]
    assert parser.done(last).speculation == Speculation(
        steps=3, drafted=12, accepted=6, accepted_by_position=(2, 2, 1, 1)
    )


def test_with_a_variable_draft_length_the_last_step_carries_the_rest():
    drafts = Told(histogram=[2, 1, 0], num_draft_tokens=5)
    parser = OutputParser(9, speculative=True)
    last = output(1, finish="length", drafts=drafts)
    assert pairs(parser, output(1), output(2), output(1), last) == [(1, 0, 0), (2, 1, 1), (1, 0, 0), (1, 4, 0)]


def test_outputs_that_came_together_never_make_the_last_step_negative():
    drafts = Told(histogram=[0, 2], num_draft_tokens=2)
    parser = OutputParser(9, drafted=1, speculative=True)
    last = output(1, "", finish="stop", drafts=drafts)
    said = pairs(parser, output(1), output(4), last)
    assert all(drafted >= accepted >= 0 for _, drafted, accepted in said)


def test_a_step_without_tokens_or_text_is_none():
    assert OutputParser(9).step(output(0, "")) is None
    assert OutputParser(9).step(output(1, "")) is not None, "half a character"


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_an_end_that_is_none(finish):
    with pytest.raises(EngineError, match=finish) as caught:
        OutputParser(9).step(output(0, "", finish=finish))
    assert caught.value.retryable


def test_times_and_events_that_did_not_happen():
    told = Told(queued_ts=10.0, scheduled_ts=10.004, first_token_ts=10.05, last_token_ts=10.5)
    times = timings_of(told)
    assert (round(times.queue_ms), round(times.prefill_ms), round(times.decode_ms)) == (4, 46, 450)
    assert timings_of(Told(queued_ts=10.0, scheduled_ts=0.0, first_token_ts=0.0, last_token_ts=0.0)) == Timings()
    assert timings_of(None) == Timings()


def test_an_answer_ends_with_its_context():
    assert sampling_arguments(Sampling(max_tokens=500), room=100)["max_tokens"] == 100
    found = sampling_arguments(Sampling(max_tokens=5, temperature=0, seed=3, stop=("a",)), room=100)
    assert found == {"max_tokens": 5, "temperature": 0, "top_p": 1.0, "seed": 3, "stop": ["a"]}
    assert not {"seed", "stop"} & sampling_arguments(Sampling(), room=9).keys()


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "not enough memory for the model"),
        (
            "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory",
            "3.1 of the GPU's 79.2 GiB are free",
        ),
        ("ValueError: No available memory for the cache blocks. Try increasing", "leave none for the KV cache"),
        (
            (
                "ValueError: To serve at least one request with the model's max seq len (131072), (62.0 GiB KV cache is"
                " needed, which is larger than the available KV cache memory (40.1 GiB). Based on the available memory,"
                " the estimated maximum model length is 84768."
            ),
            (
                "131072 tokens of context need 62.0 GiB of KV cache and 40.1 GiB are left: set RAILBUS_VLLM_MAX_LEN to"
                " at most 84768"
            ),
        ),
        ("RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}", "killed"),
        ("pydantic: Model architectures ['AbacusLM'] are not supported for now.", "architecture AbacusLM"),
        ("ModuleNotFoundError: No module named 'arctic_inference'", "pip install arctic-inference"),
    ],
)
def test_known_reasons(said, match):
    lines = ["Traceback (most recent call last):", said, "RuntimeError: Engine core initialization failed. See above."]
    assert match in start_failure_reason(lines)


def test_other_reasons_are_the_last_error_and_no_reason_is_reported():
    lines = ["(EngineCore pid=3) ValueError: a thing is odd", "RuntimeError: Engine core initialization failed."]
    assert start_failure_reason(lines) == "vLLM did not start: ValueError: a thing is odd"
    assert "left no reason" in start_failure_reason([])
    assert len(start_failure_reason([f"ValueError: {'x' * 5_000}"])) == MAX_REASON_CHARS
