"""Test that the rails process gives each request one verdict on a real log, even while Redis or OPA is unreachable."""

import asyncio

import redis.asyncio

from services.policy import load
from tests.integration.rails.lab import copy_patient_policy, make_request
from tests.integration.rails.opa import FakeOpaServer
from tests.support.policies import replace_in_file
from tests.support.waiting import until

KEY = "AKIA" + "IOSFODNN7EXAMPLQ"


def results(verdict):
    return {rail.rail: rail.result for rail in verdict.rails}


async def test_one_verdict_a_request_with_redis_opa_and_an_edited_policy(lab, redis_server, tmp_path):
    folder = copy_patient_policy(tmp_path)
    policy = load(folder)
    opa = FakeOpaServer(policy)
    url = await opa.start()
    missed = make_request(100, "Asked while nobody judges.")
    await lab.ask(missed)
    service = lab.start(
        "tests.integration.rails.patient_service",
        RAILBUS_POLICY=str(folder),
        RAILBUS_REDIS_URL=redis_server.url,
        RAILBUS_OPA_URL=url,
    )
    assert await service.ready() == f"rails policy=default version={policy.version}"

    await lab.until(lambda: lab.verdicts(missed))

    plain = make_request(1, "What is an append-only log good for?")
    allowed = await lab.verdict(plain)
    assert (allowed.decision, allowed.refusal, allowed.masked, allowed.egress) == ("allow", "", None, "allowed")
    assert results(allowed) == {"admission": "passed", "secrets": "passed", "pii": "passed"}
    assert (allowed.policy_version, allowed.delivery) == (policy.version, plain.delivery)

    secret = await lab.verdict(make_request(2, f"Is {KEY} valid?"))
    assert (secret.decision, secret.refusal) == ("deny", policy.document.refusals["secret"])
    assert (results(secret)["secrets"], secret.masked, secret.egress) == ("blocked", None, "forbidden")

    letter = "Write to anna.berg@example.org in my name."
    masked = await lab.verdict(make_request(3, "Hello.", letter))
    assert (masked.decision, results(masked)["pii"]) == ("mask", "masked")
    assert [message.content for message in masked.masked] == ["Hello.", "Write to [email address] in my name."]

    greedy = await lab.verdict(make_request(4, "Tell me everything.", max_tokens=5_000))
    assert (greedy.decision, greedy.refusal) == ("deny", policy.document.refusals["tokens"])
    clinic = await lab.verdict(make_request(5, "Summarise this note.", tenant="clinic", lane="batch"))
    assert (clinic.decision, clinic.delivery.mode, clinic.egress) == ("allow", "gated", "forbidden")

    again = await lab.verdict(make_request(6, "Hello.", letter))
    assert (again.decision, again.masked) == ("mask", masked.masked)
    assert next(rail for rail in again.rails if rail.rail == "pii").detail == "mask pii/email (remembered)"

    redis_server.kill()
    near = await lab.verdict(make_request(10, "Hello.", letter))
    assert (near.decision, near.masked) == ("mask", masked.masked)
    assert "remembered" in str(near.rails)
    for number in range(3):
        away = await lab.verdict(make_request(11 + number, f"Hello {number}.", letter))
        assert (away.decision, away.masked[1:]) == ("mask", masked.masked[1:])
        assert "remembered" not in str(away.rails)
    assert service.stderr.count("Redis is unreachable") == 1
    redis_server.start()
    await until(lambda: "Redis is reachable again" in service.stderr, every_s=0.05)
    async with redis.asyncio.from_url(redis_server.url) as client:
        kept = await client.dbsize()
        back = await lab.verdict(make_request(50, "Hello again.", letter))
        assert (back.decision, back.masked[1:]) == ("mask", masked.masked[1:])

        async def one_more():
            return await client.dbsize() > kept

        await until(one_more, "it is remembered", every_s=0.05)
        assert await client.dbsize() == kept + 1
    assert service.stderr.count("Redis is reachable again") == 1

    await lab.ask(plain)  # the same record once more
    await lab.verdict(make_request(20, "Next."))
    assert len(lab.verdicts(plain)) == 1

    replace_in_file(folder, "policy.toml", 'secret = "The prompt', 'secret = "Beware: the prompt')
    refusal = ""
    for number in range(600):
        refusal = (await lab.verdict(make_request(1_000 + number, f"{KEY}?"))).refusal
        if refusal.startswith("Beware"):
            break
        await asyncio.sleep(0.1)
    assert refusal.startswith("Beware")
    await opa.close()
    broken = await lab.verdict(make_request(900, "What is a log?"))
    assert (broken.decision, broken.egress) == ("deny", "forbidden")
    assert broken.refusal == policy.document.refusals["broken"]
    assert results(broken) == {"admission": "broke", "secrets": "passed", "pii": "passed"}
    assert broken.rails[0].detail == "OPA is unreachable: ClientConnectorError"
    assert await service.stop() == 0
    assert "anna" not in service.stderr
