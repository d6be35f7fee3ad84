"""The minimum and maximum deadlines that a policy allows, and the folder of the default policy."""

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from schemas.requests import Deadlines

DAY_MS: Final = 86_400_000

Ms = Annotated[int, Meta(ge=1, le=DAY_MS)]
Bounds = tuple[Ms, Ms]

_SERVICES: Final = Path(__file__).resolve().parents[2]


def default_policy() -> Path:
    """Return the folder of the default policy, which is used if no policy folder is set."""
    # setup.py copies the policies into this folder of a wheel. In a checkout, they are at the top level.
    packaged = _SERVICES / "policy" / "policies" / "default"
    return packaged if packaged.is_dir() else _SERVICES.parent / "policies" / "default"


DEFAULT_POLICY: Final = default_policy()


class DeadlineBounds(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The minimum and the maximum of each deadline, in milliseconds.

    Attributes:
        verdict_ms: Minimum and maximum of the deadline for the verdict.
        ttft_ms: Minimum and maximum of the deadline for the first content token.
        stall_ms: Minimum and maximum of the deadline for the next chunk of an answer.
        total_ms: Minimum and maximum of the deadline for the whole request.
    """

    verdict_ms: Bounds = (50, 10_000)
    ttft_ms: Bounds = (20, 30_000)
    stall_ms: Bounds = (100, 30_000)
    total_ms: Bounds = (500, 120_000)

    def __post_init__(self) -> None:
        for name, (least, largest) in msgspec.structs.asdict(self).items():
            if least > largest:
                msg = f"{name}: the least, {least}, is above the largest, {largest}"
                raise ValueError(msg)

    def of(self, name: str) -> Bounds:
        bounds: Bounds = getattr(self, name)
        return bounds

    def clamp(self, asked: Deadlines) -> Deadlines:
        """Return the deadlines, each raised to its minimum or lowered to its maximum if necessary."""
        return Deadlines(
            verdict_ms=_clamp(asked.verdict_ms, self.verdict_ms),
            ttft_ms=_clamp(asked.ttft_ms, self.ttft_ms),
            stall_ms=_clamp(asked.stall_ms, self.stall_ms),
            total_ms=_clamp(asked.total_ms, self.total_ms),
        )


def _clamp(ms: int, bounds: Bounds) -> int:
    return min(max(ms, bounds[0]), bounds[1])


WIDEST_BOUNDS: Final = DeadlineBounds(
    verdict_ms=(1, DAY_MS), ttft_ms=(1, DAY_MS), stall_ms=(1, DAY_MS), total_ms=(1, DAY_MS)
)
"""The widest bounds. They allow every deadline that ``Deadlines`` in an event allows."""
