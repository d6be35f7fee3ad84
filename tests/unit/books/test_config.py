"""Tests of two settings of the ledger: the time per token without speculative decoding, and the width of windows."""

import pytest

from services.books import BooksConfig, parse_plain_token_ms
from services.ledger.settings import Settings
from services.runtime.errors import UserError


def test_plain_times_are_by_model_or_for_all():
    assert parse_plain_token_ms("") == {}
    assert parse_plain_token_ms(" 8.5 ") == {"": 8.5}
    both = BooksConfig(plain_token_ms=parse_plain_token_ms("big=20, small=4"))
    assert [both.plain_ms(name) for name in ("big", "small", "other", None)] == [20.0, 4.0, None, None]
    assert BooksConfig(plain_token_ms={"": 9.0}).plain_ms("any") == 9.0


@pytest.mark.parametrize("text", ["fast", "big=", "0", "-1", "nan", "inf", "big=1e9"])
def test_anything_else_is_refused_with_its_name(text):
    with pytest.raises(UserError, match="RAILBUS_LEDGER_PLAIN_TOKEN_MS"):
        Settings(ledger_plain_token_ms=text).config()


def test_a_window_begins_at_a_multiple_of_its_width():
    config = BooksConfig(window_s=60)
    assert config.window_start_s(119_999_999) == 60
    assert config.window_start_s(120_000_000) == 120
