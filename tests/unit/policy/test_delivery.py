"""Test that a policy may tighten, but never loosen, the delivery that a request asks for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.requests import Delivery
from services.policy.policy import tighten
from services.policy.rulings import DeliveryFloor
from services.policy.source.document import DeliveryBounds

MODES = ("optimistic", "windowed", "gated")
mode = st.sampled_from(MODES)
tokens = st.integers(0, 200)
delivery = st.builds(Delivery, mode=mode, hold_tokens=tokens, hold_ms=tokens, max_exposure_tokens=st.integers(1, 200))
bounds = st.builds(
    DeliveryBounds,
    modes=st.lists(mode, min_size=1, max_size=3).map(tuple),
    max_exposure_tokens=st.integers(1, 200),
    min_hold_tokens=tokens,
    min_hold_ms=tokens,
)
floor = st.builds(
    DeliveryFloor,
    mode=mode,
    max_exposure_tokens=st.none() | st.integers(1, 200),
    hold_tokens=tokens,
    hold_ms=tokens,
)


@given(asked=delivery, bounds=bounds, floor=floor)
@settings(deadline=None)
def test_nothing_is_loosened_and_every_bound_holds(asked, bounds, floor):
    given_ = tighten(asked, bounds, floor)
    assert MODES.index(given_.mode) >= max(MODES.index(asked.mode), MODES.index(floor.mode))
    assert given_.mode in bounds.modes or given_.mode == "gated"
    assert given_.max_exposure_tokens <= min(asked.max_exposure_tokens, bounds.max_exposure_tokens)
    assert floor.max_exposure_tokens is None or given_.max_exposure_tokens <= floor.max_exposure_tokens
    assert given_.hold_tokens >= max(asked.hold_tokens, bounds.min_hold_tokens, floor.hold_tokens)
    assert given_.hold_ms >= max(asked.hold_ms, bounds.min_hold_ms, floor.hold_ms)
    assert tighten(given_, bounds, floor) == given_


def test_what_is_allowed_is_left_alone():
    asked = Delivery(mode="windowed", hold_tokens=8)
    assert tighten(asked, DeliveryBounds(), DeliveryFloor()) == asked
