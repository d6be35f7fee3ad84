"""Test that a batch request waits for a late or broken rail, and is denied only if the rail stays broken."""

from services.policy import load
from tests.integration.rails.lab import copy_patient_policy, make_request
from tests.integration.rails.opa import FakeOpaServer
from tests.support.policies import replace_in_file


async def verdict_of(lab, request):
    """Wait for the first verdict on a request that was already written, and return the verdict."""
    await lab.until(lambda: lab.verdicts(request))
    return lab.verdicts(request)[0]


async def test_a_batch_prompt_is_judged_with_a_later_deadline(lab, tmp_path):
    folder = copy_patient_policy(tmp_path)
    opa = FakeOpaServer(load(folder))
    replace_in_file(folder, "policy.toml", "deadline_ms = 10_000         # of", "deadline_ms = 100         # of")
    opa.open.clear()
    await lab.run(RAILBUS_POLICY=str(folder), RAILBUS_OPA_URL=await opa.start())
    batch = [make_request(number, f"Batch {number}.", lane="batch") for number in range(20)]
    await lab.ask(*batch)
    late = await lab.verdict(make_request(100, "Interactive."))
    assert (late.decision, late.rails[0].result) == ("deny", "timeout")
    assert not any(lab.verdicts(each) for each in batch)
    opa.open.set()
    assert {(await verdict_of(lab, each)).decision for each in batch} == {"allow"}
    await opa.close()


async def test_a_rail_that_broke_is_asked_again_for_a_batch_prompt(lab, tmp_path):
    folder = copy_patient_policy(tmp_path)
    opa = FakeOpaServer(load(folder))
    opa.answer = 503
    await lab.run(RAILBUS_POLICY=str(folder), RAILBUS_OPA_URL=await opa.start())
    batch = make_request(1, "A batch prompt.", lane="batch")
    await lab.ask(batch)
    broken = await lab.verdict(make_request(2, "An interactive prompt."))
    assert (broken.decision, broken.rails[0].result) == ("deny", "broke")
    await lab.until(lambda: any(each["lane"] == "batch" for each in opa.asked))
    assert not lab.verdicts(batch)
    opa.answer = None
    assert (await verdict_of(lab, batch)).decision == "allow"
    await opa.close()


async def test_a_rail_that_stays_broken_denies_a_batch_prompt_in_the_end(lab, tmp_path):
    folder = copy_patient_policy(tmp_path)
    opa = FakeOpaServer(load(folder))
    opa.answer = 503
    await lab.run(RAILBUS_POLICY=str(folder), RAILBUS_OPA_URL=await opa.start())
    batch = make_request(1, "A batch prompt.", lane="batch")
    await lab.ask(batch)
    denied = await verdict_of(lab, batch)
    assert (denied.decision, denied.rails[0].result) == ("deny", "broke")
    assert sum(each["lane"] == "batch" for each in opa.asked) == 5
    await opa.close()
