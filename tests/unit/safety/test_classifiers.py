"""Test what the real Presidio recognizes, and which classifiers a policy may name."""

import pytest

from services.policy import BrokenPolicy, FoundSpan
from services.policy.engines.presidio import Presidio
from services.safety.checks.classifiers import Classifiers, classifiers_check
from services.safety.checks.executor import CheckFailed
from tests.unit.safety.world import policy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def presidio():
    return Presidio()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ruf an: 030 901820 oder 0171 2345678.", {("phone", "030 901820"), ("phone", "0171 2345678")}),
        ("Ring 020 7946 0958 today", {("phone", "020 7946 0958")}),
        ("PESEL 44051401359", {("national_id", "44051401359")}),
        ("NIF 12345678Z", {("national_id", "12345678Z")}),
        ("pay 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", {("bank_account", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa")}),
        ("PESEL 44051401358 and NIF 12345678A are none.", set()),
        ("In 1995 version 10.2.33 followed on 2001-04-05 at 10:30.", set()),
    ],
)
async def test_numbers_are_found_by_country_and_checksum(presidio, text, found):
    spans = await presidio.find(text)
    assert {(span.category, text[span.start : span.end]) for span in spans} == found


async def test_the_strict_policy_has_its_classifier():
    check = await classifiers_check(policy("strict"))
    assert [span.rule for span in await check.find("PESEL 44051401359")] == ["presidio/pl_pesel"]
    await check.close()


async def test_an_unknown_classifier_is_a_fault_of_the_policy():
    with pytest.raises(
        BrokenPolicy, match=r"policy\.toml:\d+: classifier 'horoscope' is unknown; use one of: presidio"
    ):
        await classifiers_check(policy(classifiers='["horoscope"]'))


async def test_one_that_fails_leaves_the_window_unchecked():
    class Finds:
        async def find(self, text):
            return (FoundSpan("r", "c", 0, 1),)

    class Fails:
        async def find(self, text):
            raise CheckFailed("no answer")

    with pytest.raises(CheckFailed):
        await Classifiers((Finds(), Fails())).find("text")
    assert len(await Classifiers((Finds(), Finds())).find("text")) == 2
