"""Test ``railbus policy test``: the shipped policies pass their golden cases, and a failed case is reported."""

import json

import pytest

from services.policy import BrokenPolicy, load
from services.policy.golden import cases, run_case
from tests.support.policies import ROOT, copy_policy, replace_in_file


def every_case():
    for name in ("default", "strict"):
        policy = load(ROOT / "policies" / name)
        for case in cases(policy):
            yield pytest.param(policy, case, id=f"{name}: {case.name}")


@pytest.mark.parametrize(("policy", "case"), list(every_case()))
def test_the_shipped_policies_answer_as_expected(policy, case):
    assert run_case(policy, case) is None


def test_every_category_of_every_pattern_has_its_own_ruling():
    """In each shipped policy, every category that a pattern can find has an action for findings in answers."""
    for name in ("default", "strict"):
        policy = load(ROOT / "policies" / name)
        known = policy.rego.data["findings"]["output"]
        assert {rule.category for rule in policy.rules} <= known.keys()


def test_a_changed_policy_fails_its_cases_with_file_line_and_both_answers(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "rego/data.json", '"email": "redact"', '"email": "flag"')
    policy = load(folder)
    told = [fault for case in cases(policy) if (fault := run_case(policy, case))]
    assert {fault.path for fault in told} == {"golden/findings.jsonl", "golden/texts.jsonl"}
    assert 'expected {"action": "redact"}, the answer is {"action": "flag"}' in str(told[0])
    assert str(told[0]).startswith("golden/findings.jsonl:5: an address in an answer is redacted:")


def test_a_rail_that_is_let_off_fails_its_case(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "policy.toml", 'on_broken = "deny"        # "allow"', 'on_broken = "allow" # "allow"')
    policy = load(folder)
    (told,) = [fault for case in cases(policy) if (fault := run_case(policy, case))]
    assert (told.path, told.line) == ("golden/broken.jsonl", 4)
    assert told.message.endswith('expected "deny", the answer is "allow"')


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"name": "n", "expect": 1}, "needs one of"),
        ({"name": "n", "admit": {"color": "red"}, "expect": {}}, "color"),
        ({"admit": {}, "expect": {"allow": False}}, "line 1: expected"),
        ({"finding": {"side": "outputs", "category": "email"}, "expect": {}}, "use 'input' or 'output'"),
    ],
)
def test_a_case_that_cannot_be_asked_is_told(tmp_path, body, says):
    folder = copy_policy(tmp_path)
    (folder / "golden/odd.jsonl").write_text(json.dumps(body) + "\n\n")
    policy = load(folder)
    (case,) = [case for case in cases(policy) if case.path == "golden/odd.jsonl"]
    assert says in str(run_case(policy, case))


def test_a_line_that_is_no_object_breaks_the_corpus(tmp_path):
    folder = copy_policy(tmp_path)
    for line in ("{", "[]", "[" * 100_000):
        (folder / "golden/odd.jsonl").write_text('{"output": "", "expect": []}\n' + line)
        with pytest.raises(BrokenPolicy, match=r"golden/odd\.jsonl:2:"):
            cases(load(folder))
