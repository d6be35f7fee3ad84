"""Test that the decision log has a line for each decision, and that a full disk does not stop decisions."""

import json
import stat
import time
from datetime import UTC, datetime

import pytest

from services.policy import ADMISSION, FINDING, AdmissionRequest, Finding, RulingError, build, load
from services.policy.engines.decision_log import DecisionLog, RegoDecision, opa_log_line
from services.policy.source.files import read_files
from services.runtime import UserError
from tests.support.policies import ROOT, copy_policy, replace_in_file

ASKED = AdmissionRequest(
    tenant="acme", model="m", lane="batch", attempt=1, prompt_chars=3, max_tokens=9_999, mode="gated", egress="allowed"
)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_decision_is_written_as_opa_writes_it():
    decision = RegoDecision(
        entry_point=ADMISSION, asked={"tenant": "t"}, answer={"allow": True}, error=None, took_ns=17,
        policy="default", version="abc",
    )  # fmt: skip
    now = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
    assert opa_log_line(decision, decision_id="id", now=now, labels={"app": "railbus-rails"}) == {
        "labels": {"app": "railbus-rails"},
        "decision_id": "id",
        "bundles": {"default": {"revision": "abc"}},
        "path": "railbus/admission/decision",
        "input": {"tenant": "t"},
        "result": {"allow": True},
        "timestamp": "2026-03-04T05:06:07.000089Z",
        "metrics": {"timer_rego_query_eval_ns": 17},
    }


def test_every_answer_is_logged_known_ones_too(tmp_path):
    policy = load(ROOT / "policies/default")
    log = DecisionLog(tmp_path / "log", "rails")
    policy.listen(log)
    finding = Finding(tenant="acme", side="input", category="email", rule="pii/email")
    policy.admit(ASKED)
    policy.rule_on(finding)
    policy.rule_on(finding)
    log.close()
    admitted, found, again = lines_of(tmp_path / "log")
    assert (admitted["result"]["allow"], admitted["result"]["reasons"]) == (False, ["tokens"])
    assert found["input"] == {"tenant": "acme", "side": "input", "category": "email", "rule": "pii/email", "tier": 0}
    assert found["result"] == again["result"] == {"action": "mask", "egress": "allowed"}
    assert (found["metrics"]["timer_rego_query_eval_ns"] > 0, again["metrics"]) == (
        True, {"timer_rego_query_eval_ns": 0},
    )  # fmt: skip
    assert len({admitted["decision_id"], found["decision_id"], again["decision_id"]}) == 3
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_an_unusable_answer_is_logged_with_its_reason(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "rego/findings.rego", '"action": action,', '"action": "shrug",')
    policy = build(read_files(folder))
    heard = []
    policy.listen(heard.append)
    with pytest.raises(RulingError):
        policy.rule_on(Finding(tenant="acme", side="input", category="email", rule="r"))
    (decision,) = heard
    line = opa_log_line(decision, decision_id="id", now=datetime.now(UTC), labels={})
    assert decision.entry_point == FINDING
    assert "shrug" in line["error"]["message"]
    assert "result" not in line


def test_unwritable_file_is_a_user_error_and_a_full_disk_stops_nothing(tmp_path, caplog):
    with pytest.raises(UserError, match=r"RAILBUS_DECISION_LOG=.*: Is a directory; name a file"):
        DecisionLog(tmp_path, "rails")
    policy = load(ROOT / "policies/default")
    log = DecisionLog("/dev/full", "rails")
    policy.listen(log)
    policy.admit(ASKED)
    policy.admit(ASKED)
    log.close()
    assert [record.message for record in caplog.records] == ["decisions are not logged: No space left on device"]


def test_time_in_which_the_process_is_paused_does_not_count(monkeypatch):
    policy = load(ROOT / "policies/default")
    ask, heard = policy.rego.ask, []

    def ask_after_a_pause(*question):
        time.sleep(0.3)
        return ask(*question)

    monkeypatch.setattr(policy.rego, "ask", ask_after_a_pause)
    policy.listen(heard.append)
    policy.admit(ASKED)
    assert 0 < heard[0].took_ns < 300_000_000
