"""Test that errors of an upstream server are reported with their numbers and codes, but without their text."""

import json

import pytest

from services.generator.engines.chat_completions.errors import classify, upstream_error

SECRET = "my card is 4111 1111 1111 1111"


def body(**error):
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("status", "error_class", "retryable"),
    [
        (400, "bad_request", False), (401, "auth", True), (403, "auth", True), (404, "bad_request", False),
        (408, "timeout", True), (413, "bad_request", False), (422, "bad_request", False), (429, "overloaded", True),
        (500, "unavailable", True), (502, "unavailable", True), (503, "unavailable", True), (504, "timeout", True),
        (529, "overloaded", True), (302, "internal", True), (204, "internal", True),
    ],
)  # fmt: skip
def test_classes(status, error_class, retryable):
    assert classify(status) == (error_class, retryable)
    error = upstream_error(status, b"")
    assert (error.error_class, error.retryable) == (error_class, retryable)
    assert str(status) in str(error)


@pytest.mark.parametrize(
    "said",
    [
        body(message=f"Invalid: {SECRET}", type="invalid_request_error"),
        body(message=SECRET, type=SECRET),
        json.dumps({"object": "error", "message": SECRET, "code": 400}).encode(),
        json.dumps({"detail": [{"input": SECRET}]}).encode(),
        json.dumps([SECRET]).encode(),
        SECRET.encode(),
        b"\xff\xfe" + SECRET.encode(),
        b"[" * 100_000,
        body(message="maximum context length is " + "9" * 5_000),
    ],
)
def test_nothing_of_the_prompt_is_repeated(said):
    error = upstream_error(400, said)
    assert "4111" not in str(error)
    assert str(error).startswith("the upstream answered 400")


def test_an_identifier_is_kept():
    assert str(upstream_error(400, body(message="x", type="invalid_request_error"))) == (
        "the upstream answered 400 (invalid_request_error)"
    )
    assert (
        str(upstream_error(404, body(message="x", code="model_not_found")))
        == "the upstream answered 404 (model_not_found)"
    )


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            body(type="exceed_context_size_error", message="too long", n_prompt_tokens=5031, n_ctx=2048),
            "the prompt is too long: 5031 tokens, the limit is 2048 tokens",
        ),
        (
            body(message="This model's maximum context length is 2048 tokens. However, you requested 300 output tokens "
                 "and your prompt contains at least 1900 input tokens, for a total of at least 2200 tokens."),
            "the prompt is too long: 2200 tokens, the limit is 2048 tokens",
        ),
        (
            body(message="This model's maximum context length is 4097 tokens. However, your messages resulted in "
                 "6164 tokens."),
            "the prompt is too long: 6164 tokens, the limit is 4097 tokens",
        ),
        (body(message="maximum context length is 4096 tokens"), "the prompt is too long: the limit is 4096 tokens"),
    ],
)  # fmt: skip
def test_a_prompt_that_is_too_long_is_reported_with_its_numbers(said, sentence):
    error = upstream_error(400, said)
    assert str(error) == sentence
    assert (error.error_class, error.retryable) == ("bad_request", False)


def test_a_redirect_says_what_to_set():
    assert "RAILBUS_UPSTREAM_URL" in str(upstream_error(307, b""))
