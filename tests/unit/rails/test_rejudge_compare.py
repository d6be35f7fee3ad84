"""Test which differences between an old and a new verdict are counted when recorded prompts are judged again."""

import pytest

from schemas.requests import Delivery, Message
from services.rails.rejudge.compare import JudgedPrompt, VerdictComparison, change_of

NONE = frozenset()


def ruling(decision="allow", blocked=(), acted=(), unanswered=(), masked=None, egress="allowed", delivery=None):
    acted = frozenset(acted) | frozenset(blocked)
    return JudgedPrompt(decision, frozenset(blocked), acted, frozenset(unanswered), {}, {}, masked, egress, delivery)


def masked(text):
    return ruling("mask", acted=["pii"], masked=(Message(role="user", content=text),))


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (ruling(), ruling(), None),
        (ruling(), ruling("deny", ["secrets"]), "denied"),
        (ruling("deny", ["secrets"]), ruling(), "admitted"),
        (ruling("deny", ["secrets"]), masked("x"), "masked"),
        (ruling("deny", ["secrets"]), ruling("deny", ["secrets", "jailbreak"]), None),
        (ruling("deny", ["secrets"]), ruling("deny", ["jailbreak"]), "denied by other rails"),
        (masked("a"), masked("a"), None),
        (masked("a"), masked("b"), "other text masked"),
        (ruling(), ruling(egress="forbidden"), "egress"),
        (ruling(delivery=Delivery()), ruling(delivery=Delivery(mode="gated")), "delivery"),
        (ruling(), ruling(delivery=Delivery(mode="gated")), None),
    ],
)
def test_what_is_different(before, after, change):
    assert change_of(before, after) == change
    found = VerdictComparison()
    found.add("r", before, after, NONE)
    assert (found.same, [each.change for each in found.differences]) == (
        int(change is None),
        [change] if change else [],
    )


@pytest.mark.parametrize("late", [ruling("deny", unanswered=["pii"]), ruling(unanswered=["jailbreak"])])
def test_a_rail_without_an_answer_says_nothing_about_the_policy(late):
    found = VerdictComparison()
    found.add("r", late, ruling(), NONE)
    found.add("r", ruling(), late, NONE)
    assert (found.unanswered, found.differences) == (2, [])


def test_rails_that_a_refusal_cancelled_are_no_reason_to_leave_it_out():
    found = VerdictComparison()
    found.add("r", ruling("deny", ["secrets"], unanswered=["jailbreak"]), ruling(), NONE)
    assert [each.change for each in found.differences] == ["admitted"]


@pytest.mark.parametrize(
    ("before", "left_out", "same"),
    [
        (ruling("deny", ["jailbreak"]), {"jailbreak"}, 0),
        (masked("a"), {"pii"}, 0),
        (ruling("deny", ["jailbreak", "secrets"]), {"jailbreak"}, 1),
        (masked("a"), {"jailbreak"}, 1),
    ],
)
def test_verdicts_of_rails_that_are_not_asked_are_not_compared(before, left_out, same):
    found = VerdictComparison()
    after = ruling("deny", ["secrets"]) if "secrets" in before.blocked else before
    found.add("r", before, after, frozenset(left_out))
    assert (found.same, found.left_out, found.differences) == (same, 1 - same, [])


@pytest.mark.parametrize(
    ("before", "left_out", "change"),
    [
        (ruling(egress="forbidden")._replace(egress_of={"admission": "forbidden"}), {"admission"}, None),
        (ruling(egress="forbidden")._replace(egress_of={"admission": "allowed"}), {"admission"}, "egress"),
        (ruling(delivery=Delivery(mode="gated")), {"admission"}, None),
        (ruling(egress="forbidden")._replace(egress_of={"pii": "forbidden"}), {"pii"}, None),
        (ruling(egress="forbidden")._replace(egress_of={"pii": None}), {"pii"}, None),  # of an older version
        (ruling(egress="forbidden")._replace(egress_of={"pii": "forbidden"}), {"jailbreak"}, "egress"),
        (ruling(egress="forbidden")._replace(egress_of={"pii": "allowed"}), {"pii", "new"}, "egress"),
        (ruling(delivery=Delivery(mode="gated")), {"pii"}, "delivery"),
    ],
)
def test_what_a_rail_that_is_not_asked_may_have_demanded_is_no_difference(before, left_out, change):
    assert change_of(before, ruling(delivery=Delivery()), frozenset(left_out)) == change


def test_egress_that_is_newly_forbidden_differs_whatever_is_left_out():
    assert change_of(ruling(), ruling(egress="forbidden"), frozenset({"admission"})) == "egress"
