"""The pattern rails: one for personal data, one for secrets and blocked words."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from schemas.requests import Message
from services.policy import Automaton, Finding, Policy, Scanner
from services.policy.matching.folding import FoldedWords
from services.rails.rail import Edit, RailAnswer, RailFailed

if TYPE_CHECKING:
    from services.policy.engines.presidio import Presidio

SLICE_CHARS: Final = 2_000
"""How many characters are read at a time, about two milliseconds; then the event loop has its turn."""

PII_PREFIX: Final = "pii/"

CLASSIFIER_TIER: Final = 2
"""The tier in ``findings.rego`` of findings that are not by the policy's patterns."""


class PromptSpan(NamedTuple):
    """A span of a prompt in which a rail found something.

    Attributes:
        rule: Name of the rule.
        category: The category that Rego rules on.
        tier: 0 patterns, 2 classifiers.
        message: Index of the message.
        start: First code point of the span.
        end: One past the last; equal to ``start`` for a finding on the whole prompt.
    """

    rule: str
    category: str
    tier: int
    message: int
    start: int
    end: int


class PatternRail:
    """The rules of one rail in one policy version."""

    def __init__(self, policy: Policy, *, pii: bool, presidio: "Presidio | None" = None) -> None:
        self._policy = policy
        rules = [rule for rule in policy.rules if rule.name.startswith(PII_PREFIX) == pii]
        self._automaton = Automaton(rules) if rules else None
        self._presidio = presidio
        self._folded: FoldedWords | None = None if pii else policy.folded

    async def evaluate(self, tenant: str, messages: tuple[Message, ...]) -> RailAnswer:
        """Return Rego's rulings on what the rules find in each message.

        Raises:
            RulingError: Rego gave no usable answer.
        """
        spans: list[PromptSpan] = []
        for index, message in enumerate(messages):
            for rule, category, start, end in await self._find(message.content):
                spans.append(PromptSpan(rule, category, 0, index, start, end))
            for rule, category, start, end in await self._find_more(message.content):
                spans.append(PromptSpan(rule, category, CLASSIFIER_TIER, index, start, end))
        return apply_rulings(self._policy, tenant, spans)

    async def _find(self, text: str) -> list[tuple[str, str, int, int]]:
        found: list[tuple[str, str, int, int]] = []
        if self._automaton is not None:
            scanner = Scanner(self._automaton)
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


def apply_rulings(policy: Policy, tenant: str, spans: Iterable[PromptSpan]) -> RailAnswer:
    """Return the answer that follows from Rego's rulings on findings.

    Raises:
        RulingError: Rego gave no usable answer.
        RailFailed: Rego wants a prompt masked where there is nothing to mask.
    """
    edits: list[Edit] = []
    actions: dict[str, str] = {}  # by rule
    reason: str | None = None
    forbidden = False
    for rule, category, tier, message, start, end in spans:
        ruling = policy.rule_on(Finding(tenant=tenant, side="input", category=category, rule=rule, tier=tier))
        forbidden |= ruling.egress == "forbidden"
        actions[rule] = ruling.action
        if ruling.action == "deny" and reason is None:
            reason = _reason(policy, category)
        elif ruling.action == "mask":
            if start == end:
                raise RailFailed(f"Rego wants {rule} masked, but it has no span: answer deny or flag")
            edits.append(Edit(message, start, end, policy.replacement(ruling, category)))
    return RailAnswer(
        reason=reason,
        edits=() if reason is not None else tuple(edits),
        egress="forbidden" if forbidden else "allowed",
        detail=", ".join(f"{action} {rule}" for rule, action in sorted(actions.items())),
    )


def _reason(policy: Policy, category: str) -> str:
    """Return the key of the refusal text: the category if it has a text, else ``secret``, ``pii`` or ``default``."""
    if category in policy.document.refusals:
        return category
    return {"private_key": "secret"}.get(category, "pii" if category in policy.document.replacements else "default")
