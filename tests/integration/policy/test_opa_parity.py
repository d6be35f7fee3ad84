"""Test that Railbus's own Rego evaluation and the real OPA give the same answers, and write the same decision log."""

from dataclasses import asdict

import pytest

from services.policy import ADMISSION, FINDING, AdmissionRequest, Finding, load
from services.policy.engines.decision_log import DecisionLog
from services.policy.golden import cases, rego_questions
from tests.support.opa_server import OpaServer
from tests.support.policies import ROOT
from tests.unit.policy.test_decision_log import lines_of

NAMES = ("default", "strict")


@pytest.fixture(params=NAMES)
def opa(request, tmp_path):
    folder = ROOT / "policies" / request.param
    server = OpaServer(folder, tmp_path / "opa.log")
    try:
        server.wait()
        server.folder = folder
        yield server
    finally:
        server.kill()


def asked_of(policy):
    """Yield questions for Rego: the name of a rule, and the rule's input.

    The questions are those of the policy's test cases, and one about each combination of tenant, category and side.
    The side is ``input`` (the prompt) or ``output`` (the answer).
    """
    yield from (question for case in cases(policy) for question in rego_questions(policy, case))
    data = policy.rego.data
    categories = {rule.category for rule in policy.rules} | {*data["findings"]["output"], "no_such_category"}
    tenants = [*data["tenants"], "no-such-tenant"]
    for tenant in tenants:
        for category in sorted(categories):
            for side in ("input", "output"):
                yield FINDING, Finding(tenant=tenant, side=side, category=category, rule="parity")


def test_both_answer_alike(opa):
    policy = load(opa.folder)
    asked = [(entry_point, asdict(question)) for entry_point, question in asked_of(policy)]
    assert {entry_point for entry_point, _ in asked} == {ADMISSION, FINDING}
    differing = [
        (question, here, there)
        for entry_point, question in asked
        if (here := policy.rego.ask(entry_point, question)) != (there := opa.ask(entry_point, question))
    ]
    assert differing == []
    assert opa.ask(FINDING + "s", {}) is None  # so a wrong path would have been seen


def test_both_log_decisions_alike(opa, tmp_path):
    policy = load(opa.folder)
    log = DecisionLog(tmp_path / "decisions.jsonl", "rails")
    policy.listen(log)
    admittance = AdmissionRequest(
        tenant="acme", model="m", lane="batch", attempt=1, prompt_chars=3, max_tokens=9_999, mode="gated",
        egress="allowed",
    )  # fmt: skip
    finding = Finding(tenant="acme", side="output", category="email", rule="pii/email")
    policy.admit(admittance)
    policy.rule_on(finding)
    log.close()
    opa.ask(ADMISSION, asdict(admittance))
    opa.ask(FINDING, asdict(finding))
    ours, theirs = lines_of(tmp_path / "decisions.jsonl"), opa.decisions()
    assert len(ours) == len(theirs) == 2
    for here, there in zip(ours, theirs, strict=True):
        same = ("path", "input", "result")
        assert {name: here[name] for name in same} == {name: there[name] for name in same}
        assert here.keys() <= there.keys()
        assert here["metrics"].keys() <= there["metrics"].keys()
        assert here["bundles"] == {policy.document.name: {"revision": policy.version}}
        assert {type(there[name]) for name in ("decision_id", "timestamp")} == {str}
