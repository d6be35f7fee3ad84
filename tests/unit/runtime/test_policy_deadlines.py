"""Tests of the bounds that a policy sets for deadlines: how they are read, and how the router applies them."""

import pytest

from schemas.requests import Deadlines
from services.policy import DEFAULT_POLICY, load
from services.router.settings import Settings
from services.runtime.classes.policy_deadlines import DeadlineBounds
from services.runtime.classes.service_classes import read_service_classes
from services.runtime.errors import UserError


def policy(folder, text):
    (folder / "policy.toml").write_text(text)
    return folder


def test_it_reads_what_the_whole_policy_reads():
    assert tuple(read_service_classes(DEFAULT_POLICY)) == tuple(load(DEFAULT_POLICY).classes)


def test_a_policy_without_bounds_has_the_defaults(tmp_path):
    assert read_service_classes(policy(tmp_path, 'name = "x"')).of(None, "interactive").bounds == DeadlineBounds()


def test_deadlines_are_brought_within_the_bounds():
    bounds = DeadlineBounds(ttft_ms=(100, 200), total_ms=(500, 1_000))
    clamped = bounds.clamp(Deadlines(ttft_ms=1, total_ms=86_400_000, stall_ms=400))
    assert clamped == Deadlines(ttft_ms=100, total_ms=1_000, stall_ms=400)


@pytest.mark.parametrize(
    "text",
    ["[deadlines]\ntotal_ms = 5", "[deadlines]\ntotal_ms = [10, 5]", "[deadlines]\nother_ms = [1, 2]", "[deadlines"],
)
def test_a_mistake_names_the_file(tmp_path, text):
    with pytest.raises(UserError, match=r"RAILBUS_POLICY: .*policy\.toml"):
        read_service_classes(policy(tmp_path, text))


def test_a_missing_policy_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_service_classes(tmp_path)


def test_the_router_takes_the_policys_bounds(tmp_path):
    strict = policy(tmp_path, "[deadlines]\ntotal_ms = [500, 30000]\nttft_ms = [100, 2000]")
    config = Settings(policy=strict, ttft_min_ms=500).config()
    assert config.total_max_ms == 30_000
    assert config.ttft_bounds_ms == (500, 2_000)


@pytest.mark.parametrize(
    "settings", [{"total_max_ms": 30_001}, {"ttft_min_ms": 2_001}, {"stall_min_ms": 1, "stall_max_ms": 99}]
)
def test_a_setting_of_the_router_that_contradicts_the_policy_is_refused(tmp_path, settings):
    strict = policy(tmp_path, "[deadlines]\ntotal_ms = [500, 30000]\nttft_ms = [100, 2000]")
    with pytest.raises(UserError, match="polic"):
        Settings(policy=strict, **settings).config()
