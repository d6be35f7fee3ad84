"""Settings that contradict each other are refused with one sentence."""

import pytest

from services.router.settings import Settings
from services.runtime.errors import UserError


@pytest.mark.parametrize("name", ["ttft", "stall"])
def test_deadline_range_without_a_value_is_refused(name):
    with pytest.raises(UserError, match=rf"^RAILBUS_{name.upper()}_MIN_MS=300 is above RAILBUS_{name.upper()}_MAX_MS"):
        Settings(**{f"{name}_min_ms": 300, f"{name}_max_ms": 200})
    assert Settings(**{f"{name}_min_ms": 200, f"{name}_max_ms": 200}).config()
