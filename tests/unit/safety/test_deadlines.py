"""Test that the safety service remembers a request for as long as the request may be open.

The router's settings and the policy's deadlines limit how long a request may be open.
"""

import dataclasses
import re

import pytest

from schemas.requests import LONGEST_TOTAL_MS
from services.policy import BrokenPolicy
from services.router import settings as router
from services.runtime.classes.policy_deadlines import DAY_MS, DeadlineBounds
from services.runtime.classes.service_classes import ServiceClasses
from services.safety import settings as safety
from services.safety.core import SafetyCore
from services.safety.partition import GRACE_US
from services.safety.service import check_deadlines
from tests.unit.safety.world import NOW_US, RunWriter, policy, record


def test_safety_remembers_for_as_long_as_the_router_allows_by_default() -> None:
    remembered = next(field for field in dataclasses.fields(safety.Settings) if field.name == "total_max_ms")
    assert remembered.default == LONGEST_TOTAL_MS
    assert router.Settings().config().total_max_ms == policy().document.deadlines.total_ms[1] <= LONGEST_TOTAL_MS


def test_policy_that_allows_more_than_the_router_is_refused() -> None:
    longest = ServiceClasses(bounds=DeadlineBounds(total_ms=(500, 120_000)))
    check_deadlines(longest, 120_000)
    said = "total_ms may be 120000 ms in an interactive class, but RAILBUS_TOTAL_MAX_MS=119999: lower the first"
    with pytest.raises(BrokenPolicy, match=re.escape(said)):
        check_deadlines(longest, 119_999)


def test_policies_of_the_repository_agree_with_the_default() -> None:
    check_deadlines(policy().classes, LONGEST_TOTAL_MS)


def test_request_is_remembered_for_as_long_as_the_router_may_keep_it_open() -> None:
    core = SafetyCore(policy(), "safety/t", total_max_ms=400_000)
    core.gained(0)
    core.caught_up(0, NOW_US, NOW_US)
    core.read(record(RunWriter().started()), NOW_US, NOW_US)
    core.step(NOW_US)
    assert core.alarm_us(0, NOW_US) == NOW_US + DAY_MS * 1_000 + GRACE_US
