"""Tier 2: the classifiers a policy names, each on the same windows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from services.policy import BrokenPolicy, Fault, Policy
from services.policy.toml import line_of
from services.safety.checks import Check
from services.safety.looks import Spot

Factory = Callable[[], Awaitable[Check]]


class PresidioCheck:
    """Presidio's recognizers. Stateless; its work is done in a thread, a millisecond or two a window."""

    def __init__(self) -> None:
        from services.policy.presidio import Presidio  # heavy: only for policies that want it

        self._presidio = Presidio()

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What the recognizers find."""
        return tuple(Spot(*one) for one in await self._presidio.find(text))

    async def close(self) -> None:
        """Nothing to release."""


async def _presidio() -> Check:
    return await asyncio.to_thread(PresidioCheck)


KNOWN: Final[Mapping[str, Factory]] = {"presidio": _presidio}


class Classifiers:
    """Several checks as one: all must have answered."""

    def __init__(self, checks: tuple[Check, ...]) -> None:
        self._checks = checks

    async def look(self, text: str) -> tuple[Spot, ...]:
        """What any of them finds."""
        found = await asyncio.gather(*(check.look(text) for check in self._checks))
        return tuple(spot for spots in found for spot in spots)

    async def close(self) -> None:
        """Release all of them."""
        for check in self._checks:
            await check.close()


async def classifiers_check(policy: Policy) -> Classifiers:
    """The classifiers of a policy, ready.

    Raises:
        BrokenPolicy: It names one that is not there.
    """
    names = policy.document.safety.classifiers
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        line = line_of(policy.files["policy.toml"].decode(), "$.safety.classifiers")
        known = ", ".join(sorted(KNOWN))
        raise BrokenPolicy([Fault("policy.toml", line, f"classifier {unknown[0]!r} is unknown; there is {known}")])
    return Classifiers(tuple([await KNOWN[name]() for name in names]))
