"""Tests of the router's settings: contradictory values are refused, and each value reaches the router."""

import pytest

from services.router.config import UNBOUNDED, FallbackLimits, Prices
from services.router.settings import Settings
from services.runtime.errors import UserError


@pytest.mark.parametrize("name", ["ttft", "stall"])
def test_deadline_range_without_a_value_is_refused(name):
    with pytest.raises(UserError, match=rf"^RAILBUS_{name.upper()}_MIN_MS=300 is above RAILBUS_{name.upper()}_MAX_MS"):
        Settings(**{f"{name}_min_ms": 300, f"{name}_max_ms": 200})
    assert Settings(**{f"{name}_min_ms": 200, f"{name}_max_ms": 200}).config()


def test_configuration_has_what_is_set() -> None:
    config = Settings(
        router_max_open=1, router_max_batch_open=2, retries=3, batch_retries=4, retry_ratio=0.5, retry_free=6,
        fallback_attempts=7, fallback_ratio=0.8, fallback_free=9, fallback_usd_per_hour=600.0, ttft_min_ms=11,
        ttft_max_ms=12, stall_min_ms=113, stall_max_ms=114, vertex_usd_per_m_input=15.0, vertex_usd_per_m_output=16.0,
    ).config(UNBOUNDED)  # fmt: skip
    assert (config.max_open, config.max_batch_open) == (1, 2)
    assert (config.max_retries, config.max_batch_retries, config.max_fallbacks) == (3, 4, 7)
    assert config.retry_limits == FallbackLimits(ratio=0.5, free=6)
    assert config.limits == FallbackLimits(ratio=0.8, free=9, usd=10.0)
    assert (config.ttft_bounds_ms, config.stall_bounds_ms) == ((11, 12), (113, 114))
    assert config.prices == Prices(input=15.0, output=16.0)


def test_without_a_limit_the_cloud_may_cost_anything() -> None:
    assert Settings().config(UNBOUNDED).limits.usd is None
