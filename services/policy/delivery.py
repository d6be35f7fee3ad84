"""Tightening what a request asks for to what policy allows. Nothing is ever loosened. Pure."""

from typing import Final

from schemas.requests import Deadlines, Delivery, Mode
from services.policy.document import Bounds, DeadlineBounds, DeliveryBounds
from services.policy.rulings import DeliveryFloor

_STRICTNESS: Final[dict[Mode, int]] = {"optimistic": 0, "windowed": 1, "gated": 2}


def tighten(asked: Delivery, bounds: DeliveryBounds, floor: DeliveryFloor) -> Delivery:
    """The delivery nearest to what was asked that policy's bounds and Rego's floor both allow."""
    mode = _mode(asked.mode, bounds.modes, floor.mode)
    exposure = min(asked.max_exposure_tokens, bounds.max_exposure_tokens)
    if floor.max_exposure_tokens is not None:
        exposure = min(exposure, floor.max_exposure_tokens)
    return Delivery(
        mode=mode,
        hold_tokens=max(asked.hold_tokens, bounds.min_hold_tokens, floor.hold_tokens),
        hold_ms=max(asked.hold_ms, bounds.min_hold_ms, floor.hold_ms),
        max_exposure_tokens=exposure,
    )


def clamp(asked: Deadlines, bounds: DeadlineBounds) -> Deadlines:
    """Each deadline moved into its bounds."""
    return Deadlines(
        verdict_ms=_within(asked.verdict_ms, bounds.verdict_ms),
        ttft_ms=_within(asked.ttft_ms, bounds.ttft_ms),
        stall_ms=_within(asked.stall_ms, bounds.stall_ms),
        total_ms=_within(asked.total_ms, bounds.total_ms),
    )


def _mode(asked: Mode, allowed: tuple[Mode, ...], floor: Mode) -> Mode:
    least = max(_STRICTNESS[asked], _STRICTNESS[floor])
    fitting = [mode for mode in allowed if _STRICTNESS[mode] >= least]
    return min(fitting, key=_STRICTNESS.__getitem__, default="gated")


def _within(value: int, bounds: Bounds) -> int:
    return min(max(value, bounds[0]), bounds[1])
