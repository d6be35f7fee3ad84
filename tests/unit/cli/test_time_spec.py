from datetime import UTC, datetime

import pytest

from services.bus import AtTime
from services.cli.time_spec import parse_time_spec

NOW_MS = 1_758_800_000_000


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("beginning", "beginning"),
        ("end", "end"),
        ("0s", AtTime(NOW_MS)),
        ("250ms", AtTime(NOW_MS - 250)),
        ("-10m", AtTime(NOW_MS - 600_000)),
        ("2h", AtTime(NOW_MS - 7_200_000)),
        ("99999999d", AtTime(0)),
        ("2025-09-25T11:33:20+00:00", AtTime(NOW_MS)),
        ("2025-09-25T13:33:20+02:00", AtTime(NOW_MS)),
    ],
)
def test_moments(text, moment):
    assert parse_time_spec(text, NOW_MS) == moment


def test_a_time_without_an_offset_is_local():
    local = datetime.fromtimestamp(NOW_MS / 1000, UTC).astimezone().replace(tzinfo=None)
    assert parse_time_spec(local.isoformat(), NOW_MS) == AtTime(NOW_MS)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "10", "10 m", "m", "2025-13-01", "1e3s", "٣m", "9999-12-31T23:59:59-01:00"]
)
def test_what_is_no_moment_is_named(text):
    with pytest.raises(ValueError, match="no moment"):
        parse_time_spec(text, NOW_MS)
