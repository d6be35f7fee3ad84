"""From a finding to the event that says what it means. Pure."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from schemas.base import run_envelope
from schemas.stream import Action, Recall
from services.policy import Finding, Policy, Ruling, RulingError

STOPPED: Final = Ruling(action="stop")
"""What a finding means when Rego gives no usable answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """Which execution of which attempt of which request."""

    request_id: str
    tenant: str
    attempt: int
    run: str


class Stamp:
    """What every event and question carries and no decision depends on; the core sets the time before it decides.

    Attributes:
        source: Who writes.
        now_us: Microseconds since the epoch.
        work: What the matcher did beyond one look-up a character, in look-ups; the core sets it back.
    """

    __slots__ = ("_number", "now_us", "source", "work")

    def __init__(self, source: str) -> None:
        self.source = source
        self.now_us = 0
        self.work = 0
        self._number = 0

    def number(self) -> int:
        """A number that was not given before."""
        self._number += 1
        return self._number


def rule_on(policy: Policy, tenant: str, category: str, rule: str, tier: int) -> Ruling:
    """What Rego says; a Rego that fails stops the answer."""
    try:
        return policy.rule_on(Finding(tenant=tenant, side="output", category=category, rule=rule, tier=tier))
    except RulingError:
        return STOPPED


@lru_cache(maxsize=4_096)
def prompt_rules(policy: Policy, tenant: str) -> frozenset[int]:
    """Rules that stop the answer: their match counts as soon as it is known, not when it can grow no more."""
    return frozenset(
        index
        for index, rule in enumerate(policy.rules)
        if rule_on(policy, tenant, rule.category, rule.name, 0).action == "stop"
    )


def recall_id(key: RunKey, rule: str, start: int, end: int, version: str) -> str:
    """Same finding, same id: 128 bits of a hash over all that makes it the same."""
    parts = (key.request_id, str(key.attempt), key.run, rule, str(start), str(end), version)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def recall(
    key: RunKey,
    policy: Policy,
    stamp: Stamp,
    ruling: Ruling,
    *,
    action: Action,
    rule: str,
    category: str,
    span: tuple[int, int],
) -> Recall:
    """The event that says it."""
    start, end = span
    return Recall(
        **run_envelope(key, at=stamp.now_us, source=stamp.source),
        recall_id=recall_id(key, rule, start, end, policy.version),
        start=start,
        end=end,
        action=action,
        replacement=policy.replacement(ruling, category),
        rule=rule,
        category=category,
        policy_version=policy.version,
    )
