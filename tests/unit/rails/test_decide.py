"""Test that the verdict follows from the results of the rails.

A prompt is denied if a rail was cancelled. It is also denied if a rail broke or timed out, unless the policy sets
``on_broken`` to ``allow`` for this rail.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from schemas.base import envelope
from schemas.requests import MAX_PROMPT_CHARS
from schemas.stream import Verdict
from schemas.wire import MAX_EVENT_BYTES, encode
from services.policy import Admission
from services.policy.rulings import DeliveryFloor
from services.rails.decide import OTHER_BYTES, decide, mask
from services.rails.rail import Edit, RailAnswer, no_answer, report
from tests.unit.rails.world import PII_RAIL, policy, request

LENIENT = ("policy.toml", PII_RAIL, PII_RAIL.replace('"deny"', '"allow"'))
ALLOWED = Admission(allow=True)
PROMPT = ("abcdefghijklmnopqrst", "uvwxyz0123456789")

edits = st.builds(
    lambda message, start, size: Edit(message, start, start + size, "#"),
    st.integers(0, 1), st.integers(0, 10), st.integers(1, 5),
)  # fmt: skip
egresses = st.sampled_from(["allowed", "forbidden"])
answers = st.one_of(
    st.builds(RailAnswer, egress=egresses, edits=st.lists(edits, max_size=4).map(tuple)),
    st.builds(RailAnswer, reason=st.sampled_from(["secret", "jailbreak"]), egress=egresses),
)
endings = st.one_of(
    answers.map(lambda answer: lambda rail: report(rail, answer, 1.0)),
    st.sampled_from(["broke", "timeout", "cancelled"]).map(lambda result: lambda rail: no_answer(rail, result, 1.0)),
)
mixtures = st.tuples(endings, endings, endings).map(
    lambda three: [ending(rail) for ending, rail in zip(three, ("secrets", "pii", "nemo/other"), strict=True)]
)


@given(mixtures, st.sampled_from([ALLOWED, None]), st.sampled_from([policy(), policy(LENIENT)]))
def test_a_verdict_never_says_more_than_its_rails(reports, admission, held):
    asked = request(*PROMPT)
    said = decide(held, asked, reports, admission)
    lenient = {"pii"} if held is policy(LENIENT) else set()
    blocked = [one for one in reports if one.result == "blocked"]
    unanswered = [one for one in reports if one.answer is None]
    mute = [one for one in unanswered if one.result == "cancelled" or one.rail not in lenient]

    assert (said.decision == "deny") == bool(blocked or mute)
    assert bool(said.refusal) == (said.decision == "deny")
    if blocked:
        assert said.refusal == held.document.refusals[blocked[0].answer.reason]
    elif mute:
        assert said.refusal == held.document.refusals["broken"]
    masks = any(one.result == "masked" for one in reports)
    assert (said.decision == "mask") == (masks and said.decision != "deny") == (said.masked is not None)
    assert [(one.rail, one.result) for one in said.rails] == [(one.rail, one.result) for one in reports]
    kept = [one.answer is None or one.answer.egress == "forbidden" for one in reports]
    assert [one.egress == "forbidden" for one in said.rails] == kept
    if unanswered or admission is None or any(one.answer and one.answer.egress == "forbidden" for one in reports):
        assert said.egress == "forbidden"
    else:
        assert said.egress == "allowed"
    assert said.delivery.mode == ("optimistic" if admission else "gated")


@given(st.lists(edits, max_size=8))
def test_masking_removes_every_span_and_nothing_else(spans):
    masked = mask(request(*PROMPT).messages, tuple(spans))
    for index, (before, after) in enumerate(zip(PROMPT, masked, strict=True)):
        gone = {place for edit in spans if edit.message == index for place in range(edit.start, edit.end)}
        kept = "".join(char for place, char in enumerate(before) if place not in gone)
        assert after.content.replace("#", "") == kept
        assert after.role == "user"
        assert ("#" in after.content) == bool(gone)


def test_a_mask_that_does_not_fit_is_refused():
    long = "x" * MAX_PROMPT_CHARS
    reports = [report("pii", RailAnswer(edits=(Edit(0, 0, 1, "[email address]"),)), 1.0)]
    said = decide(policy(), request(long), reports, ALLOWED)
    assert (said.decision, said.masked) == ("deny", None)
    assert said.refusal == policy().document.refusals["prompt"]


def test_a_masked_prompt_that_no_event_can_hold_is_denied():
    asked = request(*["x@y.io " * 20_000] * 6)
    edits = tuple(Edit(index, at, at + 6, "[email address]") for index in range(6) for at in range(0, 70_000, 7))
    said = decide(policy(), asked, [report("pii", RailAnswer(edits=edits), 1.0)], ALLOWED)
    assert (said.decision, said.masked) == ("deny", None)
    assert said.refusal == policy().document.refusals["prompt"]
    few = tuple(edit for edit in edits if edit.start < 7_000)
    said = decide(policy(), asked, [report("pii", RailAnswer(edits=few), 1.0)], ALLOWED)
    assert said.decision == "mask"
    encode(Verdict(**envelope(asked, at=1, source="rails"), **said._asdict(), policy_version="v"))


def test_delivery_and_egress_are_as_policy_and_request_want_them():
    floor = Admission(allow=True, delivery=DeliveryFloor(mode="windowed", hold_tokens=7))
    said = decide(policy(), request(), [], floor)
    assert (said.delivery.mode, said.delivery.hold_tokens, said.egress) == ("windowed", 7, "allowed")
    assert decide(policy(), structs.replace(request(), egress="forbidden"), [], floor).egress == "forbidden"


def test_silence_is_no_answer():
    with pytest.raises(ValueError, match="passed needs an answer"):
        no_answer("pii", "passed", 1.0)


def test_two_parts_side_by_side_are_masked_each_with_its_own_text():
    (masked,) = mask(request("a@b.io+49 30 901820").messages, (Edit(0, 0, 6, "[mail]"), Edit(0, 6, 19, "[phone]")))
    assert masked.content == "[mail][phone]"


def test_a_masked_prompt_leaves_room_for_the_other_fields_of_its_event():
    asked = request(*["y" * ((MAX_EVENT_BYTES - OTHER_BYTES) // 4 - 100)] * 4)
    for more, decision in ((0, "mask"), (400, "deny")):
        answer = RailAnswer(edits=(Edit(0, 0, 1, "y" * (1 + more)),))
        assert decide(policy(), asked, [report("pii", answer, 1.0)], ALLOWED).decision == decision


def test_an_explanation_is_as_long_as_an_event_allows():
    asked = request()
    said = decide(policy(), asked, [report("pii", RailAnswer(detail="flag " * 1_000), 1.0)], ALLOWED)
    assert 0 < len(said.rails[0].detail) <= 2_000
