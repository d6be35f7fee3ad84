"""Compare the recorded recalls with the recalls under another policy. No I/O.

Also score each rule of the other policy by comparing its recalls with labels. A label is a piece of text that a person
has marked as a finding.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, NamedTuple

import msgspec

from schemas.stream import Recall
from services.safety.rejudge.policy_replay import UNCHECKED, JudgedRun, RunId

RecallChange = Literal["appears", "disappears", "moves"]


class Difference(NamedTuple):
    """A difference between the recorded recalls and the recalls under another policy.

    Attributes:
        before: The recorded recall; None if only the other policy makes the recall.
        after: The recall under the other policy; None if that policy makes no such recall.
    """

    change: RecallChange
    run: RunId
    before: Recall | None
    after: Recall | None


@dataclass(slots=True)
class Comparison:
    """The result of comparing the recorded recalls with the recalls under another policy.

    Attributes:
        same: Number of recorded recalls that the other policy makes, too, with the same rule, category, place, action
            and replacement.
        unchecked: Number of recorded recalls that were made because a check gave no answer. These recalls are not
            compared.
        differences: All differences, sorted by run, then by the start of the recalled text.
    """

    same: int = 0
    unchecked: int = 0
    differences: list[Difference] = field(default_factory=list)


def compare(runs: Mapping[RunId, JudgedRun]) -> Comparison:
    """Compare the recorded recalls of each run with the recalls that another policy makes in this run.

    A rule's recall can have another place, category or action under the other policy. The recorded recall and the new
    recall then become one ``Difference``, whose ``change`` is ``"moves"``.
    """
    found = Comparison()
    for name, run in runs.items():
        recorded = [recall for recall in run.recorded.values() if recall.category != UNCHECKED]
        judged = [recall for recall, _ in run.judged if recall.category != UNCHECKED]
        found.unchecked += len(run.recorded) - len(recorded)
        known = {_content(recall) for recall in recorded}
        now = {_content(recall) for recall in judged}
        found.same += len(known & now)
        gone = [recall for recall in recorded if _content(recall) not in now]
        for after in (recall for recall in judged if _content(recall) not in known):
            before = next((recall for recall in gone if recall.rule == after.rule), None)
            if before is not None:
                gone.remove(before)
            found.differences.append(Difference("appears" if before is None else "moves", name, before, after))
        found.differences += [Difference("disappears", name, recall, None) for recall in gone]
    found.differences.sort(key=lambda each: (each.run, (each.after or each.before).start))  # type: ignore[union-attr]
    return found


def _content(recall: Recall) -> tuple[object, ...]:
    # The id and the policy's version are different under each policy.
    return recall.rule, recall.category, recall.start, recall.end, recall.action, recall.replacement


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of an answer's text that, according to a person, should be recalled.

    Attributes:
        id: Id of the request.
        span: Offsets in the answer's text: the first code point and one past the last.
    """

    id: str
    span: tuple[int, int]
    category: str


@dataclass(slots=True)
class RuleScore:
    """The quality of one rule.

    Attributes:
        recalls: Number of recalls by the rule.
        right: Number of recalls that overlap a label of the rule's category.
        exposed_chars: For each recall, the number of code points from the start of the recalled text to the end of the
            text that had arrived when the recall was made.
        removed_chars: Number of code points that the rule's recalls removed.
        wrong_chars: Number of code points that the wrong recalls removed. A wrong recall overlaps no label of the
            rule's category.
    """

    rule: str
    category: str
    recalls: int = 0
    right: int = 0
    exposed_chars: list[int] = field(default_factory=list)
    removed_chars: int = 0
    wrong_chars: int = 0

    def row(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "category": self.category,
            "recalls": self.recalls,
            "right": self.right,
            "precision": self.right / self.recalls if self.recalls else None,
            "exposed_chars_p50": median(self.exposed_chars) if self.exposed_chars else None,
            "exposed_chars_max": max(self.exposed_chars, default=None),
            "removed_chars": self.removed_chars,
            "wrong_chars": self.wrong_chars,
        }


@dataclass(slots=True)
class Scores:
    """The scores of the other policy's rules: the result of comparing their recalls with labels.

    A label is a piece of text that a person has marked as a finding.

    Attributes:
        rules: One score for each rule that made a recall. A rule with recalls in several categories has one score for
            each of these categories.
        labels: For each category, the number of labels in answers that the rules checked.
        found: For each category, the number of these labels that overlap a recall of the same category.
        unknown: Number of labels in answers that the rules did not check.
    """

    rules: list[RuleScore]
    labels: Counter[str]
    found: Counter[str]
    unknown: int


def score(runs: Mapping[RunId, JudgedRun], labels: Iterable[Label] | None, requests: set[str]) -> Scores:
    """Score each rule. Without labels, the fields ``right`` and ``wrong_chars`` of a rule's score have no meaning."""
    by_request: dict[str, list[Label]] = defaultdict(list)
    for label in labels or ():
        by_request[label.id].append(label)
    rules: dict[tuple[str, str], RuleScore] = {}
    hit: set[Label] = set()
    for (request_id, _, _), run in runs.items():
        for recall, chars in run.judged:
            one = rules.setdefault((recall.rule, recall.category), RuleScore(recall.rule, recall.category))
            one.recalls += 1
            removed = chars if recall.action == "stop" else recall.end - recall.start
            one.removed_chars += removed
            one.exposed_chars.append(chars - recall.start)
            overlapping = [label for label in by_request.get(request_id, ()) if _overlaps(label, recall)]
            if overlapping:
                one.right += 1
                hit.update(overlapping)
            else:
                one.wrong_chars += removed
    judged = [label for own in by_request.values() for label in own if label.id in requests]
    return Scores(
        rules=sorted(rules.values(), key=lambda each: (-each.recalls, each.rule)),
        labels=Counter(label.category for label in judged),
        found=Counter(label.category for label in judged if label in hit),
        unknown=sum(map(len, by_request.values())) - len(judged),
    )


def _overlaps(label: Label, recall: Recall) -> bool:
    return label.category == recall.category and label.span[0] < recall.end and recall.start < label.span[1]
