"""Test how the policy's decisions about a rail's findings are combined into the rail's answer."""

from services.rails.patterns import PromptSpan, apply_rulings
from services.rails.rail import Edit
from tests.unit.rails.world import policy

CARD = PromptSpan("pii/payment_card", "payment_card", 0, 0, 0, 16)
MAIL = PromptSpan("pii/email", "email", 0, 0, 20, 26)
KEY = PromptSpan("secrets/private_key", "private_key", 0, 0, 30, 60)


def test_one_finding_that_must_stay_home_keeps_the_prompt_home():
    for spans in ([CARD, MAIL], [MAIL, CARD]):
        answer = apply_rulings(policy(), "acme", spans)
        assert (answer.reason, answer.egress) == (None, "forbidden")
        assert set(answer.edits) == {Edit(0, 0, 16, "[card number]"), Edit(0, 20, 26, "[email address]")}
    assert apply_rulings(policy(), "acme", [MAIL]).egress == "allowed"


def test_a_refusal_names_what_was_found_and_masks_nothing():
    answer = apply_rulings(policy(), "acme", [MAIL, KEY])
    assert (answer.reason, answer.edits) == ("secret", ())
    assert answer.detail == "mask pii/email, deny secrets/private_key"
