"""Tier 2 of the checks: the classifiers that a policy names. All of them check the same windows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from services.policy import BrokenPolicy, FoundSpan, Policy, PolicyFault
from services.policy.source.toml import line_of
from services.safety.checks.executor import Check

ClassifierFactory = Callable[[], Awaitable[Check]]


class PresidioCheck:
    """Checks with Presidio's recognizers. They are stateless and run in a thread, for 1 or 2 ms per window."""

    def __init__(self) -> None:
        from services.policy.engines.presidio import Presidio  # a heavy import, only for policies that name it

        self._presidio = Presidio()

    async def find(self, text: str) -> tuple[FoundSpan, ...]:
        return tuple(await self._presidio.find(text))

    async def close(self) -> None:
        """Do nothing, because there is nothing to release."""


async def _presidio() -> Check:
    return await asyncio.to_thread(PresidioCheck)


KNOWN: Final[Mapping[str, ClassifierFactory]] = {"presidio": _presidio}


class Classifiers:
    """Combines several checks into one, which gives an answer only if all of them do."""

    def __init__(self, checks: tuple[Check, ...]) -> None:
        self._checks = checks

    async def find(self, text: str) -> tuple[FoundSpan, ...]:
        found = await asyncio.gather(*(check.find(text) for check in self._checks))
        return tuple(span for spans in found for span in spans)

    async def close(self) -> None:
        for check in self._checks:
            await check.close()


async def classifiers_check(policy: Policy) -> Classifiers:
    """Build a policy's classifiers.

    Raises:
        BrokenPolicy: The policy names an unknown classifier.
    """
    names = policy.document.safety.classifiers
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        line = line_of(policy.files["policy.toml"].decode(), "$.safety.classifiers")
        known = ", ".join(sorted(KNOWN))
        raise BrokenPolicy(
            [PolicyFault("policy.toml", line, f"classifier {unknown[0]!r} is unknown; use one of: {known}")]
        )
    return Classifiers(tuple([await KNOWN[name]() for name in names]))
