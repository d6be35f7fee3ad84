"""Test that every prompt gets a verdict if a rails process is killed, OPA is slow or wrong, or a policy is unusable."""

import asyncio
import json
import signal

import pytest

from services.policy import load
from tests.integration.rails.lab import copy_patient_policy, make_request
from tests.integration.rails.opa import FakeOpaServer
from tests.support.policies import replace_in_file
from tests.support.waiting import until


@pytest.fixture
async def opa(tmp_path):
    folder = copy_patient_policy(tmp_path)
    admission = 'name = "admission"\n'
    replace_in_file(folder, "policy.toml", admission, admission + "deadline_ms = 9_000\n")
    server = FakeOpaServer(load(folder))
    server.folder = folder
    yield server
    await server.close()


async def test_killed_while_judging_a_group_member_answers_everything_once(lab, opa):
    url = await opa.start()
    env = {"RAILBUS_POLICY": str(opa.folder), "RAILBUS_OPA_URL": url}
    replace_in_file(opa.folder, "policy.toml", "deadline_ms = 9_000", "deadline_ms = 50_000")
    first, second = lab.start(**env), lab.start(**env)
    await asyncio.gather(first.ready(), second.ready())

    number, requests, sources = 0, [], set()
    while len(sources) < 2:  # both have a partition
        number += 1
        requests.append(make_request(number, "Who are you?"))
        sources.add((await lab.verdict(requests[-1])).source)
        assert number < 1_000
        await asyncio.sleep(0.05)  # the group may be sharing them out for a while

    opa.open.clear()
    opa.asked.clear()
    batch = [make_request(3_000 + turn, f"Line {turn}", lane="batch") for turn in range(600)]
    await lab.ask(*batch)
    waiting = [make_request(1_000 + turn, f"Question {turn}") for turn in range(40)]
    await lab.ask(*waiting)
    await until(lambda: sum(one["lane"] == "interactive" for one in opa.asked) == len(waiting))
    # Eight in each of the two: nobody waits behind the batch.
    assert sum(one["lane"] == "batch" for one in opa.asked) <= 16
    first.signal(signal.SIGKILL)
    opa.open.set()
    requests += [*batch, *waiting]
    await lab.until(lambda: all(lab.verdicts(request) for request in requests))

    for request in requests:
        given = lab.verdicts(request)
        assert {verdict.decision for verdict in given} == {"allow"}
        assert lab.effective(request) == given[0]  # the first in the log is the one that counts
    assert await second.stop() == 0


async def test_opa_that_is_slow_fails_or_talks_nonsense_closes_and_is_named(lab, opa):
    service = lab.start(RAILBUS_POLICY=str(opa.folder), RAILBUS_OPA_URL=await opa.start())
    await service.ready()
    number = 0

    async def said():
        nonlocal number
        number += 1
        return await lab.verdict(make_request(number, "What is a log?"))

    assert (await said()).decision == "allow"
    for answer, detail in (
        (500, "OPA answered 500"),
        (b"<html>", "OPA's answer is not JSON"),
        (b"{}", "OPA: data.railbus.admission.decision is undefined for this input"),
        (b'{"result": {"allow": "yes"}}', "OPA: data.railbus.admission.decision: Expected `bool`"),
        (b" " * 100_000, "OPA's answer has more than 65536 bytes"),
    ):
        opa.answer = answer
        verdict = await said()
        assert (verdict.decision, verdict.egress, verdict.delivery.mode) == ("deny", "forbidden", "gated")
        (broken,) = [rail for rail in verdict.rails if rail.result not in {"passed", "masked"}]
        assert (broken.rail, broken.result, broken.detail[: len(detail)]) == ("admission", "broke", detail)
    opa.answer = None
    opa.open.clear()
    verdict = await said()
    assert verdict.decision == "deny"
    assert (verdict.rails[0].rail, verdict.rails[0].result) == ("admission", "timeout")
    opa.open.set()
    assert (await said()).decision == "allow"
    assert await service.stop() == 0


async def test_spoilt_policy_is_refused_and_a_repaired_one_is_taken(lab, tmp_path):
    folder = copy_patient_policy(tmp_path)
    decisions = tmp_path / "decisions.jsonl"
    service = lab.start(RAILBUS_POLICY=str(folder), RAILBUS_DECISION_LOG=str(decisions))
    await service.ready()
    old = (await lab.verdict(make_request(1, "What is a log?"))).policy_version

    line = replace_in_file(folder, "rego/admission.rego", "decision := {", "decision := }{")
    # A policy is tried as a whole, by NeMo too, which takes a busy machine a while.
    within = {"within_s": 120, "every_s": 0.2}
    await until(
        lambda: f"policy rejected, {old} stays in force: rego/admission.rego:{line}: " in service.stderr, **within
    )
    assert (await lab.verdict(make_request(2, "What is a log?"))).policy_version == old

    replace_in_file(folder, "rego/admission.rego", "decision := }{", "decision := {")
    replace_in_file(folder, "nemo/config.yml", "  output:", "  input: {flows: [horoscope]}\n  output:")
    await until(lambda: "NeMo rejects it" in service.stderr, **within)
    assert (await lab.verdict(make_request(3, "What is a log?"))).policy_version == old

    replace_in_file(folder, "nemo/config.yml", "[horoscope]", "[context bloat detection on input]")
    replace_in_file(folder, "policy.toml", 'default = "This request', 'default = "Sorry: this request')
    new = load(folder).version
    await until(lambda: f"policy default is now {new}" in service.stderr, **within)
    assert (await lab.verdict(make_request(4, "Write to xylo@example.org."))).policy_version == new
    assert await service.stop() == 0
    lines = [json.loads(line) for line in decisions.read_text().splitlines()]
    revisions = [line["bundles"]["default"]["revision"] for line in lines]
    assert revisions == [old, old, old, new, new]
    assert [line["path"] for line in lines] == ["railbus/admission/decision"] * 4 + ["railbus/findings/decision"]
    assert "xylo" not in decisions.read_text()
