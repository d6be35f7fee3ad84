"""Test that a change of the policy's ``[classes]`` applies to new requests, while open requests keep their class."""

from schemas.requests import Deadlines
from schemas.side_events import Account
from tests.integration.router.lab import RouterLab
from tests.support.request_events import RequestEvents
from tests.support.waiting import until

LONG_MS = 200_000
BEFORE = "[deadlines]\n" + "".join(f"{name}_ms = [1, {LONG_MS}]\n" for name in ("verdict", "ttft", "stall", "total"))
AFTER = BEFORE + "[classes.express]\nbounds = { total_ms = [1, 400] }\n"


async def test_new_requests_have_the_new_class_and_open_ones_keep_theirs(lab: RouterLab, tmp_path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(BEFORE)
    router = await lab.run(RAILBUS_POLICY=str(tmp_path), RAILBUS_TOTAL_MAX_MS=str(LONG_MS))
    asked = {"service_class": "express", "deadlines": Deadlines(ttft_ms=LONG_MS, stall_ms=LONG_MS, total_ms=LONG_MS)}
    before = RequestEvents(**asked)
    await lab.post(before.request, before.started(), before.chunk(0))

    file.write_text(AFTER)
    await until(lambda: "the policy's classes are now" in router.stderr, "the router reads the change", within_s=60)
    after = RequestEvents(**asked)
    await lab.post(after.request, after.started(), after.chunk(0))
    await lab.until(lambda: bool(lab.written(Account)))
    (account,) = lab.written(Account)
    assert (account.request_id, account.outcome, account.service_class) == (after.id, "expired", "express")

    await lab.post(before.finished(0))
    await lab.until(lambda: len(lab.written(Account)) == 2)
    (account,) = lab.written(Account, before.id)
    assert (account.outcome, account.service_class) == ("completed", "chat")
    assert await router.stop() == 0
