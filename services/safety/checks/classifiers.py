"""The checks of tier 2: the classifiers that a policy names."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from services.policy import BrokenPolicy, FoundSpan, Policy, PolicyFault
from services.policy.source.toml import line_of


class Classifier(Protocol):
    async def find(self, text: str) -> Sequence[FoundSpan]: ...


def _presidio() -> Classifier:
    from services.policy.engines.presidio import Presidio  # a heavy import, only for policies that name it

    return Presidio()


KNOWN: Final[Mapping[str, Callable[[], Classifier]]] = {"presidio": _presidio}


class Classifiers:
    """Combines several classifiers into one check. If one of them fails, the combined check fails."""

    def __init__(self, classifiers: Sequence[Classifier]) -> None:
        self._classifiers = classifiers

    async def find(self, text: str) -> tuple[FoundSpan, ...]:
        found = await asyncio.gather(*(each.find(text) for each in self._classifiers))
        return tuple(span for spans in found for span in spans)

    async def close(self) -> None:
        pass  # no classifier has anything to release


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
    return Classifiers([await asyncio.to_thread(KNOWN[name]) for name in names])
