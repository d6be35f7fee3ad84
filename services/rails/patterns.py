"""The pattern rails: one for personal data, one for secrets and blocked words."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from schemas.requests import Message
from services.policy import Automaton, Finding, FoundSpan, Match, Policy, Ruling, Scanner
from services.policy.matching.folding import FoldedWords
from services.policy.source.document import pattern_rail
from services.rails.rail import Edit, RailAnswer, RailFailed
from services.rails.turns import DEAR_PIECE_CHARS, DEAR_WORK, PIECE_CHARS, SLICE_WORK, Turns

if TYPE_CHECKING:
    from services.policy.engines.presidio import Presidio

CLASSIFIER_TIER: Final = 2
"""The tier in ``findings.rego`` of findings that do not come from the policy's patterns."""


class PromptSpan(NamedTuple):
    """A part of a prompt in which a rail found something.

    Attributes:
        tier: The tier in ``findings.rego``: 0 if a pattern found the part, 2 if a classifier did.
        message: Index of the message in the prompt.
        start: Index of the part's first code point, counted from the start of the message.
        end: Index after the part's last code point; equal to ``start`` if the finding is about the whole prompt.
    """

    rule: str
    category: str
    tier: int
    message: int
    start: int
    end: int


class PatternRail:
    def __init__(self, policy: Policy, turns: Turns, *, pii: bool, presidio: "Presidio | None" = None) -> None:
        self._policy = policy
        self._turns = turns
        self._presidio_turns = Turns(active=turns.active)  # separate, as they take a hundred times as long, in a thread
        self._automaton = Automaton([rule for rule in policy.rules if (pattern_rail(rule.name) == "pii") == pii])
        self._presidio = presidio
        self._folded: FoldedWords | None = None if pii else policy.folded

    async def evaluate(self, tenant: str, messages: tuple[Message, ...], *, batch: bool = False) -> RailAnswer:
        """Search all messages for the rail's patterns. The policy's Rego decides what to do about each finding.

        Raises:
            RulingError: Rego gave no usable answer.
        """
        spans: list[PromptSpan] = []
        slices = _scan(self._automaton, messages, spans)
        more = True
        while more:
            async with self._turns.turn(tenant, batch=batch):
                more = next(slices, False)
        for index, message in enumerate(messages):
            if self._folded is not None:
                async with self._turns.turn(tenant, batch=batch):
                    spans += _placed(self._folded.find(message.content), 0, index)
            if self._presidio is not None:
                found = await self._presidio.find(
                    message.content, partial(self._presidio_turns.turn, tenant, batch=batch)
                )
                spans += _placed(found, CLASSIFIER_TIER, index)
        return apply_rulings(self._policy, tenant, spans)


def _scan(automaton: Automaton, messages: tuple[Message, ...], spans: list[PromptSpan]) -> Iterator[bool]:
    spent = 0
    for index, message in enumerate(messages):
        scanner, text = Scanner(automaton), message.content
        start = 0
        piece = PIECE_CHARS
        while start < len(text):
            if spent >= SLICE_WORK:  # the end of a slice, which is shorter if the text is expensive to read
                spent = 0
                yield True
            spans += _matched(scanner.feed(text[start : start + piece]), index)
            start += piece
            cost, scanner.work = piece + scanner.work, 0
            spent += cost
            piece = DEAR_PIECE_CHARS if cost >= piece * DEAR_WORK else PIECE_CHARS
        spans += _matched(scanner.finish(), index)


def _matched(matches: Iterable[Match], message: int) -> Iterator[PromptSpan]:
    return (PromptSpan(one.rule.name, one.rule.category, 0, message, one.start, one.end) for one in matches)


def _placed(found: Iterable[FoundSpan], tier: int, message: int) -> Iterator[PromptSpan]:
    return (PromptSpan(one.rule, one.category, tier, message, one.start, one.end) for one in found)


def apply_rulings(policy: Policy, tenant: str, spans: Iterable[PromptSpan]) -> RailAnswer:
    """Ask the policy's Rego what to do about each span. Combine its decisions into the rail's answer.

    Raises:
        RulingError: Rego gave no usable answer.
        RailFailed: Rego wants to mask a finding that is about the whole prompt.
    """
    edits: list[Edit] = []
    actions: dict[str, str] = {}  # by rule
    rulings: dict[tuple[str, str, int], Ruling] = {}  # a prompt may have ten thousand findings of a few kinds
    reason: str | None = None
    forbidden = False
    for rule, category, tier, message, start, end in spans:
        ruling = rulings.get((rule, category, tier))
        if ruling is None:
            asked = Finding(tenant=tenant, side="input", category=category, rule=rule, tier=tier)
            ruling = rulings[rule, category, tier] = policy.rule_on(asked)
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
    if category in policy.document.refusals:
        return category
    return {"private_key": "secret"}.get(category, "pii" if category in policy.document.replacements else "default")
