"""Make recalls and clearances from findings. No I/O."""

import hashlib
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from schemas.base import run_envelope
from schemas.stream import Cleared, Recall
from services.policy import Finding, FoundSpan, Policy, Ruling, RulingError
from services.safety.decide.check_types import RunOutput
from services.safety.decide.windows import PendingCheck, WindowTracker

STOP: Final = Ruling(action="stop")
"""The ruling if Rego gives no usable answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    request_id: str
    tenant: str
    attempt: int
    run: str


class CheckContext:
    """Data that all checks of one ``SafetyCore`` or ``PolicyReplay`` share.

    Attributes:
        source: The name of the safety process in the events that it writes.
        now_us: The current time in microseconds since the epoch. The core sets it before it makes decisions.
        work: Estimated cost of pattern matching, beyond the cost of reading each character once. The unit is the cost
            of reading one character. ``SafetyCore.step`` sets ``work`` to 0 when it starts. If ``work`` becomes large,
            ``step`` ends early.
        holding: Whether checks are held back, because the partition is still catching up.
    """

    __slots__ = ("_number", "holding", "now_us", "source", "work")

    def __init__(self, source: str) -> None:
        self.source = source
        self.now_us = 0
        self.work = 0
        self.holding = False
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number


def rule_on(policy: Policy, tenant: str, category: str, rule: str, tier: int) -> Ruling:
    """Return Rego's ruling on a finding; if Rego fails, the ruling is to stop the answer."""
    try:
        return policy.rule_on(Finding(tenant=tenant, side="output", category=category, rule=rule, tier=tier))
    except RulingError:
        return STOP


def immediate_rules(policy: Policy, tenant: str) -> frozenset[int]:
    """Return the indexes, in ``policy.rules``, of the rules whose matches stop an answer to ``tenant``."""
    by_tenant = _immediate.setdefault(policy, {})
    found = by_tenant.get(tenant)
    if found is None:
        if len(by_tenant) >= _MAX_TENANTS:
            by_tenant.clear()
        found = by_tenant[tenant] = frozenset(
            index
            for index, rule in enumerate(policy.rules)
            if rule_on(policy, tenant, rule.category, rule.name, 0).action == "stop"
        )
    return found


_MAX_TENANTS: Final = 4_096

_immediate: Final[WeakKeyDictionary[Policy, dict[str, frozenset[int]]]] = WeakKeyDictionary()
"""By policy and tenant. A policy that was replaced must not be kept, because its automaton may take 80 MB."""


class RecallBuilder:
    """Builds the recalls and clearances of one run. The policy's Rego decides what a finding leads to."""

    __slots__ = ("_context", "_key", "_limit", "_policy", "_recall_ids")

    def __init__(self, key: RunKey, policy: Policy, context: CheckContext) -> None:
        self._key = key
        self._policy = policy
        self._context = context
        self._limit = policy.document.safety.max_findings
        self._recall_ids: tuple[set[str], ...] = (set(), set(), set())  # by tier; at most the limit and one more

    def finding(self, tier: int, span: FoundSpan, outputs: list[RunOutput]) -> bool:
        """Add a recall to ``outputs`` for a finding, if Rego's ruling requires one.

        Return whether the recall stops the answer.
        """
        ruling = rule_on(self._policy, self._key.tenant, span.category, span.rule, tier)
        return ruling.action != "flag" and self._recall(ruling, span, tier, outputs)

    def window(
        self, tracker: WindowTracker, pending: PendingCheck, spans: tuple[FoundSpan, ...], outputs: list[RunOutput]
    ) -> bool:
        """Add the recalls for a window's findings to ``outputs``. Return whether a recall stops the answer."""
        for span in sorted(spans, key=lambda span: (span.start, span.end, span.rule)):
            placed = _placed(tracker, pending, span)
            if placed is not None and self.finding(tracker.tier, placed, outputs):
                return True
        return False

    def unchecked(self, tracker: WindowTracker, pending: PendingCheck, outputs: list[RunOutput]) -> bool:
        """Add a recall to ``outputs`` for a window that could not be checked, if Rego's ruling requires one.

        Return whether the check's tier (1 for NeMo rails, 2 for classifiers) must stop. After a tier has stopped, it
        checks no further windows of the run.
        """
        rule = f"safety/tier{tracker.tier}"
        ruling = rule_on(self._policy, self._key.tenant, "unchecked", rule, tracker.tier)
        if ruling.action == "flag":
            return True  # policy wants no recall: the text stays uncleared
        start, end = tracker.unrecalled(rule, pending.start, pending.end)
        return start < end and self._recall(ruling, FoundSpan(rule, "unchecked", start, end), tracker.tier, outputs)

    def cleared(self, seq: int, *, final: bool) -> Cleared:
        envelope = run_envelope(self._key, at=self._context.now_us, source=self._context.source)
        return Cleared(**envelope, seq=seq, final=final, policy_version=self._policy.version)

    def _recall(self, ruling: Ruling, span: FoundSpan, tier: int, outputs: list[RunOutput]) -> bool:
        recall_ids, version = self._recall_ids[tier], self._policy.version
        if len(recall_ids) >= self._limit:
            if _recall_id(self._key, span, version) in recall_ids:
                return False  # another window had this finding
            ruling, span = STOP, FoundSpan("safety/flood", "flood", span.start, span.end)
        event = Recall(
            **run_envelope(self._key, at=self._context.now_us, source=self._context.source),
            recall_id=_recall_id(self._key, span, version),
            start=span.start,
            end=span.end,
            action="stop" if ruling.action == "stop" else "redact",
            replacement=self._policy.replacement(ruling, span.category),
            rule=span.rule,
            category=span.category,
            policy_version=version,
        )
        recall_ids.add(event.recall_id)
        outputs.append(event)  # `RequestCheck.new` leaves out events that are on the log
        return event.action == "stop"


def _recall_id(key: RunKey, span: FoundSpan, version: str) -> str:
    # 128 bits of a hash over all that identifies a finding, so that the same finding has the same id.
    parts = (key.request_id, str(key.attempt), key.run, span.rule, str(span.start), str(span.end), version)
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:32]


def _placed(tracker: WindowTracker, pending: PendingCheck, span: FoundSpan) -> FoundSpan | None:
    start, end = pending.start + span.start, pending.start + span.end
    if (start, end) == (pending.start, pending.end):  # the rail judged its window as a whole: recall what is left of it
        start, end = tracker.unrecalled(span.rule, start, end)
    elif tracker.is_whole_elsewhere(pending, start, end):
        return None
    return FoundSpan(span.rule, span.category, start, end) if start < end else None
