"""Test that a class can be added to ``[classes]`` of the policy, and removed again, while the edge runs."""

import asyncio

from services.runtime.metrics import POLICY_REFUSED
from tests.integration.edge.lab import ASK
from tests.support.waiting import until

BEFORE = "[deadlines]\ntotal_ms = [1, 60000]\n"
EXPRESS = BEFORE + "[classes.express]\ndeadlines = { total_ms = 45000 }\n"
WRONG = BEFORE + "[classes.express]\ndeadlines = { total_ms = 99999999 }\n"
CHOSEN = {"X-Railbus-Class": "express"}


async def test_a_class_comes_and_goes_without_a_restart(lab, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(BEFORE)
    url = await lab.edge(policy=tmp_path)
    chat = f"{url}/v1/chat/completions"

    async def refused() -> bool:
        """Send a request of the class ``express``, and return whether the edge refuses it.

        If the edge accepts the request, write an answer to the log, because the HTTP call waits for it.
        """
        asking = asyncio.create_task(lab.http.post(chat, json=ASK, headers=CHOSEN))
        coming = asyncio.create_task(lab.next_request())
        await asyncio.wait({asking, coming}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            seen.append(await coming)
            await lab.write_plain(seen[-1], "x")
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)
        async with await asking as response:
            assert response.status in {200, 400}
            return response.status == 400

    async def accepted() -> bool:
        return not await refused()

    seen = []
    assert await refused()
    file.write_text(EXPRESS)
    await until(accepted, "the class can be asked for", every_s=0.2)
    assert (seen[-1].service_class, seen[-1].deadlines.total_ms) == ("express", 45_000)
    refusals = POLICY_REFUSED._value.get()
    file.write_text(WRONG)
    await until(lambda: POLICY_REFUSED._value.get() > refusals, "it is read, and refused")
    assert await accepted()
    file.write_text(BEFORE)
    await until(refused, "the class is gone", every_s=0.2)


async def test_a_request_sent_again_after_a_change_is_the_same_request(lab, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(BEFORE)
    url = await lab.edge(policy=tmp_path)
    once = {"headers": {"Idempotency-Key": "k1"}, "json": ASK}
    asking = asyncio.create_task(lab.http.post(f"{url}/v1/chat/completions", **once))
    request = await lab.answer("Hello")
    assert (await asking).status == 200
    file.write_text(BEFORE + "[classes.chat]\ndeadlines = { total_ms = 45000 }\n")
    classes = lab.edges[url]._requests._classes
    await until(lambda: classes.current.of(None, "interactive").deadlines.total_ms == 45_000, "the change is used")
    async with lab.http.post(f"{url}/v1/chat/completions", **once) as response:
        assert response.status == 200
        assert request.request_id in (await response.json())["id"]
    longer = ASK | {"railbus": {"deadlines": {"total_ms": 50_000}}}
    async with lab.http.post(f"{url}/v1/chat/completions", **once | {"json": longer}) as response:
        assert response.status == 422
