"""Tests of the option ``--window`` of ``railbus ledger``, which says how far back to look."""

import pytest

from services.cli.commands.ledger import length_ms
from services.runtime.errors import UserError


def test_a_length_has_a_unit():
    assert [length_ms(text) for text in ("90s", "10m", "1h", "7d")] == [90_000, 600_000, 3_600_000, 604_800_000]


@pytest.mark.parametrize("text", ["", "1", "h", "0m", "1w", "-1h", "1h "])
def test_anything_else_is_refused(text):
    with pytest.raises(UserError, match="--window"):
        length_ms(text)
