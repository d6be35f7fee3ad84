"""Test that a stream's chunks do not depend on how its bytes are split, and that malformed data raises an error."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.stream import Speculation
from services.generator.engines.chat_completions.chunks import (
    MAX_LINE_BYTES,
    SseDecoder,
    parse_chunk,
    speculation_totals,
)
from services.worker.engine import EngineError

STREAM = (
    b": keep-alive\n\n"
    b'data: {"id":"c1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\r\n\r\n'
    b"event: message\nid: 7\n"
    b'data:{"choices":[{"delta":{"content":"Gr\xc3\xbc"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\\u00dfe \xf0\x9f\x8c\x8a"},"logprobs":null}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":null}}\n\n'
    b"data: [DONE]\n\n"
)


def read(parts):
    decoder = SseDecoder()
    chunks = [chunk for part in parts for chunk in decoder.feed(part)]
    return chunks, decoder.done


def contents(chunks):
    return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_do_not_depend_on_how_the_bytes_arrive(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks, done = read(STREAM[a:b] for a, b in itertools.pairwise(edges))
    assert chunks == read([STREAM])[0]
    assert done


def test_what_a_stream_holds():
    chunks, done = read([STREAM])
    assert done
    assert contents(chunks) == ["", "Grü", "ße 🌊", None]
    assert chunks[3].choices[0].finish_reason == "stop"
    assert chunks[4].choices == []
    assert chunks[4].usage.completion_tokens == 3


def test_nothing_is_read_after_the_end():
    chunks, done = read([b'data: [DONE]\n\ndata: {"choices":[]}\n\n'])
    assert (chunks, done) == ([], True)


def test_an_unended_line_waits():
    chunks, done = read([b'data: {"choices":[]}'])
    assert (chunks, done) == ([], False)


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"choices": 3}',
        b'{"choices":[{"delta":{"content":5}}]}',
        b'{"usage":{"completion_tokens":-1}}',
        b'{"metrics":{"queue_time_ms":-0.5}}',
    ],
)
def test_what_is_no_chunk_is_one_error(payload):
    with pytest.raises(EngineError, match="no chat completion chunk") as caught:
        read([b"data: " + payload + b"\n\n"])
    assert caught.value.error_class == "internal"


def test_a_line_without_end_is_refused():
    half = b"x" * (MAX_LINE_BYTES // 2)
    assert read([half, half]) == ([], False)
    with pytest.raises(EngineError, match=f"a line of more than {MAX_LINE_BYTES} bytes"):
        read([half, half, half])


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        ({"message": "CUDA", "code": 500}, "unavailable"),
        ({"code": 400}, "bad_request"),
        ({"code": "odd"}, "unavailable"),
    ],
)
def test_an_error_in_the_middle_of_a_stream(error, error_class):
    with pytest.raises(EngineError) as caught:
        parse_chunk(msgspec.json.encode({"error": error}))
    assert caught.value.error_class == error_class
    assert "CUDA" not in str(caught.value)


def test_vllm_tells_its_drafting():
    chunk = parse_chunk(
        b'{"choices":[],"metrics":{"queue_time_ms":3.5,"speculative_decoding":{"mean_acceptance_length":1.2,'
        b'"acceptance_histogram":[39,1,0,3],"num_spec_steps":43,"num_accepted_draft_tokens":10,"num_draft_tokens":129}}}'
    )
    assert speculation_totals(chunk) == Speculation(steps=43, drafted=129, accepted=10, accepted_by_position=(4, 3, 3))
    assert sum(speculation_totals(chunk).accepted_by_position) == speculation_totals(chunk).accepted


def test_llama_cpp_tells_its_drafting():
    chunk = parse_chunk(b'{"choices":[],"timings":{"prompt_ms":31.5,"draft_n":40,"draft_n_accepted":11}}')
    assert speculation_totals(chunk) == Speculation(drafted=40, accepted=11)
    assert speculation_totals(parse_chunk(b'{"choices":[],"timings":{"prompt_ms":31.5}}')) is None
    assert speculation_totals(parse_chunk(b'{"choices":[],"metrics":{"queue_time_ms":1}}')) is None
