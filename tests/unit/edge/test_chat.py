"""Test which chunks and completions an OpenAI client gets for each op."""

import orjson
import pytest

from schemas.ids import uuid7
from schemas.stream import Failed, Usage
from services.edge.delivery.session import CatchUpOps, DeliverySession
from services.edge.delivery.stats import PositionedOp
from services.edge.encoders.chat_chunks import DONE_EVENT, ChatChunkEncoder
from services.edge.encoders.completion import CompletionEncoder
from services.edge.errors import CODES_OF_FAILURES, error_for_close, error_for_failure
from services.edge.log.positions import OpId
from services.stream import AS_STARTED, Begin, Close, Finish, Refuse, Replace, Restart, Show, Withdraw
from tests.support.edge_answers import AnswerWriter

ID = uuid7(1_763_700_000_123, 99)
RECALL = {"rule": "r", "category": "c", "policy_version": "v", "recall_id": "i"}
BEGIN = Begin(attempt=1, run="r", model="tiny")
FINISH = Finish(attempt=1, run="r", finish_reason="length", usage=Usage(prompt_tokens=2, completion_tokens=3))


def show(text):
    return Show(text=text, tokens=1)


def stream_of(*ops, on_restart="error", include_usage=False):
    encoder = ChatChunkEncoder(
        DeliverySession(ID, 1, AS_STARTED), "asked", include_usage=include_usage, on_restart=on_restart
    )
    chunks = []
    for nth, op in enumerate(ops):
        data = encoder.encode(PositionedOp(OpId(1, 5, nth), op, b""))
        if data:
            head, line = data.split(b"\n", 1)
            assert head == b"id: 1:5:%d" % nth
            chunks.append(orjson.loads(line.removeprefix(b"data: ").removesuffix(b"\n\n")))
    return chunks, encoder


def completion_of(*ops):
    encoder = CompletionEncoder(DeliverySession(ID, 1, AS_STARTED), "asked")
    for nth, op in enumerate(ops):
        assert encoder.encode(PositionedOp(OpId(1, 5, nth), op, b"")) == b""
    return orjson.loads(encoder.encode_end()), encoder


def deltas_of(chunks):
    return [(c["choices"][0]["delta"].get("content"), c["choices"][0]["finish_reason"]) for c in chunks]


def test_text_and_end():
    chunks, encoder = stream_of(BEGIN, show('a"\n'), show("b"), FINISH, Close(outcome="completed", reason=""))
    assert deltas_of(chunks) == [('a"\n', None), ("b", None), (None, "length")]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in chunks[1]["choices"][0]["delta"]
    for chunk in chunks:
        assert (chunk["id"], chunk["created"], chunk["model"]) == (f"chatcmpl-{ID}", 1_763_700_000, "tiny")
        assert chunk["object"] == "chat.completion.chunk"
        assert "usage" not in chunk
    assert encoder.encode_end() == DONE_EVENT


def test_usage_when_asked_for():
    chunks, encoder = stream_of(BEGIN, show("a"), show("b"), FINISH, include_usage=True)
    assert all(chunk["usage"] is None for chunk in chunks)
    last = orjson.loads(encoder.encode_end().split(b"\n\n")[0].removeprefix(b"data: "))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_an_empty_answer_still_has_a_role():
    chunks, _ = stream_of(BEGIN, FINISH)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("op", [Withdraw(end=0, text="gone", **RECALL), Refuse(text="gone", policy_version="v")])
def test_a_recall_before_any_text_is_plain_text(op):
    chunks, _ = stream_of(op)
    assert deltas_of(chunks) == [("gone", "content_filter")]
    assert chunks[0]["railbus"]["text"] == "gone"


def test_a_recall_after_text_adds_no_text():
    chunks, _ = stream_of(BEGIN, show("bad"), Withdraw(end=3, text="gone", **RECALL))
    assert deltas_of(chunks) == [("bad", None), (None, "content_filter")]
    assert chunks[1]["railbus"]["op"] == "withdraw"


def test_a_redaction_of_unsent_text_is_text_and_of_sent_text_only_an_op():
    ahead, _ = stream_of(BEGIN, show("ab"), Replace(start=2, end=2, text="#", **RECALL), show("c"), FINISH)
    assert deltas_of(ahead) == [("ab", None), ("#", None), ("c", None), (None, "content_filter")]
    behind, _ = stream_of(BEGIN, show("ab"), Replace(start=0, end=1, text="##", **RECALL), show("c"), FINISH)
    assert deltas_of(behind) == [("ab", None), (None, None), ("c", None), (None, "content_filter")]
    assert (behind[1]["railbus"]["start"], behind[1]["railbus"]["end"]) == (0, 1)


def test_a_restart_before_any_text_adds_no_chunk():
    chunks, encoder = stream_of(BEGIN, Restart(attempt=2, trigger="ttft"), Begin(attempt=2, run="s", model="other"),
                               show("a"))  # fmt: skip
    assert deltas_of(chunks) == [("a", None)]
    assert chunks[0]["model"] == "other"
    assert encoder.error is None


def test_a_restart_after_text_is_an_error_or_a_marker():
    restart = Restart(attempt=2, trigger="stall")
    chunks, encoder = stream_of(BEGIN, show("a"), restart)
    assert deltas_of(chunks) == [("a", None)]
    assert encoder.error.code == "restarted"
    assert orjson.loads(encoder.encode_end().removeprefix(b"data: "))["error"]["code"] == "restarted"
    chunks, encoder = stream_of(BEGIN, show("a"), restart, show("b"), on_restart="marker")
    assert deltas_of(chunks) == [("a", None), (None, None), ("b", None)]
    assert chunks[1]["railbus"] == {"op": "restart", "attempt": 2, "trigger": "stall"}
    assert encoder.error is None


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("failed", 502), ("expired", 504), ("cancelled", 499), ("rejected", 400), ("denied", None), ("completed", None)],
)
def test_a_close_without_an_answer(outcome, status):
    close = Close(outcome=outcome, reason="because")
    chunks, encoder = stream_of(BEGIN, show("a"), close)
    body, completion = completion_of(BEGIN, close)
    if status is None:
        assert deltas_of(chunks)[-1][1] == ("stop" if outcome == "completed" else "content_filter")
        assert encoder.error is completion.error is None
    else:
        assert encoder.error.status == completion.error.status == status
        assert body["error"]["message"] == "because"


def test_a_whole_completion():
    body, encoder = completion_of(BEGIN, FINISH)
    assert encoder.error is None
    assert body["model"] == "tiny"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 5
    recalled, _ = completion_of(BEGIN, show("x"), Replace(start=0, end=1, text="#", **RECALL), FINISH)
    assert recalled["choices"][0]["finish_reason"] == "content_filter"
    assert recalled["railbus"]["op"] == "replace"


def test_an_answer_that_failed_after_a_redaction_is_an_error():
    ops = BEGIN, show("a@b"), Replace(start=0, end=3, text="#", **RECALL), Close(outcome="failed", reason="because")
    body, completion = completion_of(*ops)
    _, encoder = stream_of(*ops)
    assert completion.error.status == encoder.error.status == 502
    assert body["error"]["message"] == "because"


def test_a_redaction_of_an_attempt_that_was_replaced_does_not_count():
    ops = (BEGIN, show("a@b"), Replace(start=0, end=3, text="#", **RECALL), Restart(attempt=2, trigger="stall"),
           Begin(attempt=2, run="s", model="other"), show("clean"), FINISH)  # fmt: skip
    body, _ = completion_of(*ops)
    assert body["choices"][0]["finish_reason"] == "length"
    assert "railbus" not in body
    chunks, _ = stream_of(*ops, on_restart="marker")
    assert deltas_of(chunks)[-2:] == [("clean", None), (None, "length")]


@pytest.mark.parametrize("error_class", CODES_OF_FAILURES)
def test_every_failure_has_its_status(error_class):
    failed = Failed(**AnswerWriter(ID).voiced(), error_class=error_class, message="m", retryable=True)
    error = error_for_failure(failed)
    assert 400 <= error.status < 600
    assert error_for_close(Close(outcome="failed", reason="r"), failed).code == error.code
    assert error_for_close(Close(outcome="expired", reason="r"), failed).code == "expired"


@pytest.mark.parametrize(
    ("error_class", "param", "expected"),
    [
        ("bad_request", "model", (404, "model_not_found", "model")),
        ("bad_request", "messages", (400, "bad_request", "messages")),
        ("bad_request", None, (400, "bad_request", None)),
        ("internal", "model", (500, "internal", None)),
    ],
)
def test_a_bad_request_names_the_field_at_fault(error_class, param, expected):
    failed = Failed(
        **AnswerWriter(ID).voiced(), error_class=error_class, message="it is not served", retryable=False, param=param
    )
    error = error_for_failure(failed)
    assert (error.status, error.code, error.param) == expected


def test_where_unsent_text_is_redacted_is_counted_in_what_the_client_shows():
    first = Replace(start=0, end=6, text="#", **RECALL)
    chunks, _ = stream_of(BEGIN, show("secret"), first, Replace(start=1, end=1, text="!", **RECALL))
    assert deltas_of(chunks)[-1] == ("!", None)
    restart = Restart(attempt=2, trigger="stall")
    unsent = Replace(start=0, end=0, text="#", **RECALL)
    chunks, _ = stream_of(BEGIN, show("a"), restart, unsent, on_restart="marker")
    assert deltas_of(chunks)[-1] == ("#", None)


def test_an_end_that_the_client_has_already_counts_in_a_completion():
    encoder = CompletionEncoder(DeliverySession(ID, 1, AS_STARTED), "asked")
    encoder.catch_up(CatchUpOps((BEGIN, FINISH), (), splittable=True))
    body = orjson.loads(encoder.encode_end())
    assert (body["model"], body["choices"][0]["finish_reason"], body["usage"]["total_tokens"]) == ("tiny", "length", 5)
