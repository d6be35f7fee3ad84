"""Test that the ledger counts each class of requests separately, and that a class can be added without a restart."""

import asyncio
import json

import aiohttp
import pytest

from tests.support.policies import copy_policy
from tests.support.tree import running_tree
from tests.support.waiting import comes_true, until

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")
pytestmark = pytest.mark.slow

COUNTS = {"chat": 7, "voice": 5}
BODY = {"model": "default", "stream": True, "max_tokens": 16}


async def ask(http, url, name, number):
    """Send a request of the class ``name``, and return the HTTP status when the answer is complete."""
    body = BODY | {"messages": [{"role": "user", "content": f"Tell me about the number {number}."}]}
    headers = {"X-Railbus-Class": name}
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def test_the_ledger_has_each_class_and_a_new_one_needs_no_restart(tmp_path):
    policy = copy_policy(tmp_path)
    with running_tree(
        tmp_path, "--engine", "simulated", "--no-redis", governed=False, ledger=True, start_s=240,
        RAILBUS_POLICY=str(policy),
    ) as tree:  # fmt: skip

        def booked():
            shown = tree.railbus("ledger", "--json")
            return json.loads(shown.stdout) if shown.stdout else {"rows": [], "classes": []}

        def counts():
            found = {}
            for row in booked()["rows"]:
                name = row["service_class"] or {"interactive": "chat"}[row["lane"]]
                found[name] = found.get(name, 0) + row["requests"]
            return found

        async with aiohttp.ClientSession() as http:
            asked = [(name, number) for name, count in COUNTS.items() for number in range(count)]
            assert set(await asyncio.gather(*(ask(http, tree.url, *each) for each in asked))) == {200}
            assert await comes_true(lambda: counts() == COUNTS, 180, every_s=1), counts()
            classes = {each["service_class"]: each["judged"] for each in booked()["classes"]}
            assert classes.keys() == COUNTS.keys()
            assert all(
                0 < judged <= COUNTS[name] for name, judged in classes.items()
            )  # what was cancelled is not judged
            shown = tree.railbus("ledger").stdout
            assert all(f" {name} " in shown for name in COUNTS)

            assert await ask(http, tree.url, "express", 0) == 400
            file = policy / "policy.toml"
            file.write_text(file.read_text() + "\n[classes.express]\npriority = 1\n")

            async def accepted():
                return await ask(http, tree.url, "express", 1) == 200

            await until(accepted, "the class can be asked for", within_s=60, every_s=0.5)

            async def booked_by_its_name():  # the router reads the policy again by itself, perhaps later than the edge
                assert await ask(http, tree.url, "express", 2) == 200
                return "express" in counts()

            await until(booked_by_its_name, "the class is in the ledger", within_s=180, every_s=1)
