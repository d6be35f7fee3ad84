"""Test that a line is tried again only if that may help, and that the line's result names the right error."""

import pytest

from schemas.stream import Closed, Failed
from services.batch.line_state import LineAttempt, LineState, decide
from services.stream import Screen

ABOUT = {"request_id": "r", "tenant": "t", "at": 0, "source": "test"}


def ended(outcome, cause, retryable=None):
    """Return a line whose only request was closed with ``outcome`` and ``cause``.

    If ``retryable`` is not None, the engine reported an error before the request was closed. ``retryable`` says whether
    that error is temporary.
    """
    attempt = LineAttempt(Screen("r"), 0, 0, 0)
    if retryable is not None:
        failed = Failed(
            **ABOUT, attempt=1, run="r", error_class="bad_request", message="no", retryable=retryable, param="model"
        )
        attempt.feed(failed, 0, 0)
    assert attempt.feed(Closed(**ABOUT, outcome=outcome, cause=cause, reason="why"), 1, 0)
    return LineState({1: attempt})


@pytest.mark.parametrize(
    ("outcome", "cause", "retryable", "decision"),
    [
        ("failed", "attempts_failed", None, "retry"),
        ("failed", "attempts_failed", True, "retry"),
        ("failed", "attempts_failed", False, "done"),
        ("expired", "deadline", False, "retry"),  # too many requests were open, which may pass
        ("cancelled", "client_gone", None, "retry"),
        ("denied", None, None, "done"),
        ("recalled", None, None, "done"),
    ],
)
def test_a_line_is_tried_again_where_that_may_help(outcome, cause, retryable, decision):
    line = ended(outcome, cause, retryable)
    assert decide(line, 2, ending=False)[0] == decision
    for most, ending in ((1, False), (2, True)):
        assert decide(line, most, ending=ending)[0] == "done"


def test_the_result_is_of_the_engine_only_if_the_engine_ended_the_request():
    _, _, result = decide(ended("failed", "attempts_failed", retryable=False), 1, ending=False)
    assert (result.code, result.message, result.param) == ("bad_request", "no", "model")
    _, _, result = decide(ended("expired", "deadline", retryable=False), 1, ending=False)
    assert (result.code, result.message, result.param) == ("expired", "why", None)
