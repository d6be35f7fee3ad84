"""The rails that look for patterns: personal data in one, secrets and blocked words in the other."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from schemas.requests import Message
from services.policy import Finding, Machine, Policy, Scanner
from services.policy.folding import FoldedWords
from services.rails.rail import Answer, Edit, RailBroke

if TYPE_CHECKING:
    from services.policy.presidio import Presidio

SLICE_CHARS: Final = 2_000
"""So many characters are looked through at a time, about two milliseconds; then others get their turn."""

PII_PREFIX: Final = "pii/"

CLASSIFIER_TIER: Final = 2
"""Of what no pattern of the policy found, as ``findings.rego`` counts."""


class Spot(NamedTuple):
    """Something that was found in a prompt.

    Attributes:
        rule: Which rule found it.
        category: What Rego decides by.
        tier: 0 patterns, 2 classifiers.
        message: In which message.
        start: First code point of the span.
        end: One past the last; the start when it is about the whole prompt.
    """

    rule: str
    category: str
    tier: int
    message: int
    start: int
    end: int


class PatternRail:
    """The rules of one policy version that are one rail's."""

    def __init__(self, policy: Policy, *, pii: bool, presidio: "Presidio | None" = None) -> None:
        self._policy = policy
        rules = [rule for rule in policy.rules if rule.name.startswith(PII_PREFIX) == pii]
        self._machine = Machine(rules) if rules else None
        self._presidio = presidio
        self._folded: FoldedWords | None = None if pii else policy.folded

    async def look(self, tenant: str, messages: tuple[Message, ...]) -> Answer:
        """What the rules find in the messages, each on its own, and what Rego says it means.

        Raises:
            RulingError: Rego gave no usable answer.
        """
        spots: list[Spot] = []
        for index, message in enumerate(messages):
            for rule, category, start, end in await self._find(message.content):
                spots.append(Spot(rule, category, 0, index, start, end))
            for rule, category, start, end in await self._find_more(message.content):
                spots.append(Spot(rule, category, CLASSIFIER_TIER, index, start, end))
        return weigh(self._policy, tenant, spots)

    async def _find(self, text: str) -> list[tuple[str, str, int, int]]:
        found: list[tuple[str, str, int, int]] = []
        if self._machine is not None:
            scanner = Scanner(self._machine)
            matches = []
            for start in range(0, len(text), SLICE_CHARS):
                if start:
                    await asyncio.sleep(0)
                matches += scanner.feed(text[start : start + SLICE_CHARS])
            matches += scanner.finish()
            found += [(match.rule.name, match.rule.category, match.start, match.end) for match in matches]
        if self._folded is not None:
            found += self._folded.find(text)
        return found

    async def _find_more(self, text: str) -> list[tuple[str, str, int, int]]:
        return [] if self._presidio is None else [*await self._presidio.find(text)]


def weigh(policy: Policy, tenant: str, spots: Iterable[Spot]) -> Answer:
    """What findings mean.

    Raises:
        RulingError: Rego gave no usable answer.
        RailBroke: Rego wants a prompt masked where there is nothing to mask.
    """
    edits: list[Edit] = []
    said: dict[str, str] = {}  # rule -> action
    reason: str | None = None
    forbidden = False
    for rule, category, tier, message, start, end in spots:
        ruling = policy.rule_on(Finding(tenant=tenant, side="input", category=category, rule=rule, tier=tier))
        forbidden |= ruling.egress == "forbidden"
        said[rule] = ruling.action
        if ruling.action == "deny" and reason is None:
            reason = _reason(policy, category)
        elif ruling.action == "mask":
            if start == end:
                raise RailBroke(f"Rego wants {rule} masked, but it has no span: answer deny or flag")
            edits.append(Edit(message, start, end, policy.replacement(ruling, category)))
    return Answer(
        reason=reason,
        edits=() if reason is not None else tuple(edits),
        egress="forbidden" if forbidden else "allowed",
        detail=", ".join(f"{action} {rule}" for rule, action in sorted(said.items())),
    )


def _reason(policy: Policy, category: str) -> str:
    """A category without a refusal text of its own is told by what kind of thing it is."""
    if category in policy.document.refusals:
        return category
    return {"private_key": "secret"}.get(category, "pii" if category in policy.document.replacements else "default")
