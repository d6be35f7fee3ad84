"""Test that the chunks have exactly the engine's text, without gaps, overlaps or empty chunks.

The tests also check that ``EventBuilder`` counts all tokens of an answer.
"""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from schemas.stream import Usage
from schemas.wire import decode, encode
from services.worker.engine import EngineStep, GenerationResult
from services.worker.event_builder import BATCH_CHUNK_US, MAX_CHUNK_CHARS, EventBuilder
from services.worker.scheduler import Refusal
from tests.unit.worker.samples import T0_US, request_id, ticket

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
steps = st.lists(
    st.builds(
        lambda text, tokens, drafted, accepted: EngineStep(
            text=text, tokens=tokens, drafted=drafted, accepted=accepted
        ),
        texts | st.just(""),
        st.integers(0, 6),
        st.integers(0, 5),
        st.integers(0, 5),
    ),
    max_size=30,
)


def builder():
    return EventBuilder(ticket(), "generator/test")


@given(steps)
def test_chunks_are_the_text_and_nothing_else(given_steps):
    events = builder()
    said = [chunk for step in given_steps for chunk in events.chunks(step, T0_US)]
    whole = "".join(step.text for step in given_steps)
    assert "".join(chunk.text for chunk in said) == whole
    assert [chunk.seq for chunk in said] == list(range(len(said)))
    assert all(chunk.text == whole[chunk.start : chunk.start + len(chunk.text)] != "" for chunk in said)
    assert events.tokens == sum(step.tokens for step in given_steps)
    told = [step for n, step in enumerate(given_steps) if any(later.text for later in given_steps[n:])]
    for count in ("tokens", "drafted", "accepted"):
        assert sum(getattr(chunk, count) for chunk in said) == sum(getattr(step, count) for step in told)
    assert events.failed(Refusal("internal", "", retryable=True), T0_US).last_seq == len(said) - 1


@given(steps, st.lists(st.integers(0, 700_000), min_size=30, max_size=30))
def test_a_batch_answer_is_the_same_text_in_fewer_chunks(given_steps, waits_us):
    events, now_us, said = EventBuilder(ticket(batch=True), "generator/test"), T0_US, []
    for step, wait_us in zip(given_steps, waits_us, strict=False):
        now_us += wait_us
        said += events.chunks(step, now_us)
    said += events.rest(now_us)
    assert list(events.rest(now_us)) == []
    whole = "".join(step.text for step in given_steps)
    assert "".join(chunk.text for chunk in said) == whole
    assert [chunk.seq for chunk in said] == list(range(len(said)))
    assert all(chunk.text == whole[chunk.start : chunk.start + len(chunk.text)] != "" for chunk in said)
    silent = [step.tokens for n, step in enumerate(given_steps) if not any(later.text for later in given_steps[n:])]
    # Tokens without text at the end are in the last chunk while it is still collected, and then only in the usage.
    assert events.tokens - sum(chunk.tokens for chunk in said) in {sum(silent[n:]) for n in range(len(silent) + 1)}
    assert all(later.at - chunk.at >= BATCH_CHUNK_US for chunk, later in pairwise(said[:-1]))


def test_a_long_batch_answer_does_not_wait_for_the_second_to_pass():
    events = EventBuilder(ticket(batch=True), "generator/test")
    said = [chunk for _ in range(9) for chunk in events.chunks(EngineStep(text="x" * 1_000), T0_US)]
    assert [len(chunk.text) for chunk in said] == [5_000]
    assert [len(chunk.text) for chunk in events.rest(T0_US)] == [4_000]


@given(steps)
def test_every_event_can_be_read(given_steps):
    build = builder()
    events = [build.started(model="small", engine="simulated", gate="hold", check="on", now_us=T0_US + 1_500)]
    events += [chunk for step in given_steps for chunk in build.chunks(step, T0_US)]
    events += [build.finished(GenerationResult(finish_reason="stop"), T0_US)]
    for event in events:
        value, headers = encode(event)
        assert decode(value, headers, request_id().encode()) == event


def test_a_very_long_step_becomes_chunks_that_the_log_takes():
    events = builder()
    text = "\u0001" * (2 * MAX_CHUNK_CHARS + 5)  # six bytes each on the wire
    said = list(events.chunks(EngineStep(text=text, tokens=7, drafted=4, accepted=3), T0_US))
    assert [len(chunk.text) for chunk in said] == [MAX_CHUNK_CHARS, MAX_CHUNK_CHARS, 5]
    assert [chunk.tokens for chunk in said] == [7, 0, 0]
    assert [chunk.start for chunk in said] == [0, MAX_CHUNK_CHARS, 2 * MAX_CHUNK_CHARS]
    for chunk in said:
        encode(chunk)


def test_started_says_what_the_request_asked():
    asked = ticket(at_us=T0_US - 12_345, mode="windowed", total_ms=777)
    started = EventBuilder(asked, "generator/test").started(
        model="small", engine="llama", gate="off", check="off", now_us=T0_US
    )
    assert started.queue_ms == 12.345
    assert started.received_at == T0_US - 12_345
    assert (started.delivery, started.deadlines) == (asked.request.delivery, asked.request.deadlines)
    assert (started.attempt, started.run, started.model, started.engine) == (1, "run-0", "small", "llama")
    assert (started.input_gate, started.output_check) == ("off", "off")


def test_a_request_from_the_future_waited_no_negative_time():
    started = EventBuilder(ticket(at_us=T0_US + 5_000_000), "generator/test").started(
        model="m", engine="e", gate="off", check="off", now_us=T0_US
    )
    assert started.queue_ms == 0


def test_an_answer_that_breaks_off_costs_its_prompt_too():
    events = builder()
    list(events.chunks(EngineStep(text="two ", tokens=2, prompt_tokens=9), T0_US))
    failed = events.failed(Refusal("cancelled", "", retryable=False), T0_US)
    assert failed.usage == Usage(prompt_tokens=9, completion_tokens=2)


def test_a_failure_counts_the_chunks_and_tokens_before_it():
    events = builder()
    list(events.chunks(EngineStep(text="two ", tokens=2), T0_US))
    list(events.chunks(EngineStep(text="", tokens=1), T0_US))
    failed = events.failed(Refusal("unavailable", "x" * 5_000, retryable=True), T0_US)
    assert (failed.last_seq, failed.usage) == (0, Usage(completion_tokens=3))
    assert (failed.error_class, failed.retryable, len(failed.message)) == ("unavailable", True, 2_000)
    assert failed.param is None
    assert events.failed(Refusal("bad_request", "", retryable=False, param="model"), T0_US).param == "model"
    msgspec.json.encode(failed)
