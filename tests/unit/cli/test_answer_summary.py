import pytest

from services.cli.client.answer_summary import AnswerSummary
from services.stream import Close, Show


def result(*ops, outcome="completed", reason=""):
    made = AnswerSummary(asked_at=10.0, request_id="ID")
    for at, tokens in ops:
        made.take(Show(text="x", tokens=tokens), at)
    if outcome:
        made.take(Close(outcome=outcome, reason=reason), 99.0)
    return made


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("completed", 0),
        ("denied", 3),
        ("recalled", 3),
        *((o, 1) for o in ("failed", "expired", "cancelled", "rejected")),
    ],
)
def test_exit_codes(outcome, code):
    assert result(outcome=outcome).exit_code == code
    assert result(outcome=None).exit_code == 1


def test_the_line_tells_first_token_and_speed():
    line = result((10.075, 1), (10.575, 5), (11.075, 5)).closing_line()
    assert line == "completed, first token after 75 ms, 11 tokens at 10.0/s, request ID"


def test_speed_needs_two_moments():
    assert result((10.5, 3)).closing_line() == "completed, first token after 500 ms, 3 tokens, request ID"


def test_a_failure_says_why():
    assert (
        result(outcome="expired", reason="no answer in 60 s").closing_line() == "expired, no answer in 60 s, request ID"
    )
    assert result(outcome=None).closing_line() == "no end was received, request ID"
