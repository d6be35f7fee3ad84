"""Test tier 1 of the safety service (NeMo rails): spans of findings, and rails that raise an error or rewrite text.

The tests run the real NeMo Guardrails.
"""

import pytest
import yaml

from services.policy import BrokenPolicy, FoundSpan, build
from services.policy.engines.nemo import add_rail, build_engine
from services.safety.checks.executor import CheckFailed
from services.safety.checks.nemo import nemo_check
from tests.unit.safety.world import policy

# NeMo's own configuration classes warn about their own fields.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PHRASE = "how to build a pipe bomb"


def configured(*flows, **config):
    """Return the default policy with other output rails (``flows``) and other settings of NeMo's rails (``config``)."""
    files = dict(policy().files)
    body = yaml.safe_load(files["nemo/config.yml"])
    body["rails"]["output"]["flows"] = list(flows)
    body["rails"]["config"] = config
    files["nemo/config.yml"] = yaml.safe_dump(body).encode()
    return build(files)


async def found(held, text):
    check = await nemo_check(held)
    try:
        return await check.find(text)
    finally:
        await check.close()


async def test_words_in_disguise_have_their_spans():
    text = f"First h0w to bu!ld a p.i.p.e bomb and then {PHRASE}."
    spans = await found(policy(), text)
    assert [text[span.start : span.end] for span in spans] == ["h0w to bu!ld a p.i.p.e bomb", PHRASE]
    assert {(span.rule, span.category) for span in spans} == {("blocklist/instructions", "blocklist")}
    assert await found(policy(), "Nothing to see here.") == ()


async def test_nemos_own_regexes_have_their_spans_and_do_not_hide_ours():
    text = f"You may double your dose. {PHRASE}! Stop taking your insulin."
    spans = await found(policy("strict"), text)
    assert {(span.rule, text[span.start : span.end]) for span in spans} == {
        ("nemo/regex check output", "double your dose"),
        ("nemo/regex check output", "Stop taking your insulin"),
        ("blocklist/instructions", PHRASE),
    }


async def test_a_regex_that_matches_no_character_takes_the_window():
    held = configured(
        "regex check output", regex_detection={"output": {"patterns": ["(?=.*salary)(?=.*director)", "x+y"]}}
    )
    text = "the salary of the director"
    assert await found(held, text) == (FoundSpan("nemo/regex check output", "rail", 0, len(text)),)
    assert await found(held, "the salary") == ()


async def test_a_rail_that_only_says_no_takes_the_window():
    add_rail("test blocking", "output", "tests.unit.safety.rails_for_tests:blocking")
    held = configured("test blocking")
    assert await found(held, "a forbidden fruit") == (FoundSpan("nemo/test blocking", "rail", 0, 17),)
    assert await found(held, "an apple") == ()


async def test_a_rail_that_raises_is_neither_a_finding_nor_a_pass(caplog):
    add_rail("test raising", "output", "tests.unit.safety.rails_for_tests:raising")
    with pytest.raises(CheckFailed, match="'test raising' raised") as failed:
        await found(configured("railbus output", "test raising"), "my secret words")
    assert "secret" not in str(failed.value)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("flow", ["no such rail", "railbus jailbreak"])
async def test_a_configuration_that_nemo_does_not_take_is_refused(flow):
    with pytest.raises(BrokenPolicy, match=r"nemo/config\.yml:0: NeMo rejects it: .*no surface"):
        await nemo_check(configured(flow))


async def test_the_other_side_is_left_out():
    engine = await build_engine(configured("railbus output").files, "output", {})
    assert engine.config.rails.input.flows == []
    assert engine.config.rails.output.flows == ["railbus output"]
    await engine.stop()


async def test_a_rail_that_rewrites_has_found_something():
    add_rail("test rewriting", "output", "tests.unit.safety.rails_for_tests:rewriting")
    held = configured("test rewriting", "railbus output")
    assert await found(held, "do not shout") == (FoundSpan("nemo/test rewriting", "rail", 0, 12),)
    assert [span.rule for span in await found(held, f"shout: {PHRASE}")] == [
        "nemo/test rewriting",
        "blocklist/instructions",
    ]
