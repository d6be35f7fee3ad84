"""Remembered answers in a real Redis: of the same words only, never a word of a prompt, and never in the way."""

import asyncio
import signal

import pytest
import redis.asyncio

from services.rails import cache as module
from services.rails.answers import PASSED, Answer, Edit
from services.rails.cache import Cache, key_of
from tests.unit.rails.world import policy, request

ANSWERS = {"pii": Answer(edits=(Edit(0, 3, 9, "[email address]"),), detail="mask pii/email"), "secrets": PASSED}
RAILS = ("secrets", "pii")


@pytest.fixture
async def cache(redis_server):
    held = Cache(redis_server.url)
    await held.open()
    yield held
    await held.close()


def test_the_key_tells_apart_what_rails_may_tell_apart_and_holds_no_text():
    base = key_of(policy(), request("a xylophone", "b"))
    assert base == key_of(policy(), request("a xylophone", "b", lane="batch"))
    assert "xylophone" not in base
    others = [
        key_of(policy(name="strict"), request("a xylophone", "b")),
        key_of(policy(), request("a xylophone", "b", tenant="other")),
        key_of(policy(), request("a xylophone", "b", model="other")),
        key_of(policy(), request("a xylophone", "b", role="system")),
        key_of(policy(), request("a xylophoneb")),
        key_of(policy(), request("a xylophone", "", "b")),
    ]
    assert len({base, *others}) == len(others) + 1


async def test_what_was_kept_is_found_by_the_same_rails_only(cache):
    assert await cache.find("k", RAILS) is None
    await cache.keep("k", ANSWERS)
    assert await cache.find("k", RAILS) == ANSWERS
    assert await cache.find("k", (*RAILS, "jailbreak")) is None
    assert await cache.find("k", ("pii",)) is None


async def test_nonsense_is_no_answer(cache, redis_server):
    async with redis.asyncio.from_url(redis_server.url) as client:
        for body in (b"", b"\xff", b"[]", b'{"pii": 1, "secrets": {}}', b'{"pii": {"edits": [[0]]}, "secrets": {}}'):
            await client.set("k", body)
            assert await cache.find("k", RAILS) is None


async def test_away_or_hung_it_costs_one_short_wait_and_is_said_once(cache, redis_server, monkeypatch, caplog):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    await cache.keep("k", ANSWERS)
    redis_server.signal(signal.SIGSTOP)
    async with asyncio.timeout(10):
        assert await cache.find("k", RAILS) is None
        assert await cache.find("k", RAILS) is None
        redis_server.signal(signal.SIGCONT)
        found = None
        for _ in range(200):
            assert await cache.find("other", RAILS) is None  # a late answer is not taken for another question's
            found = await cache.find("k", RAILS)
            if found is not None:
                break
            await asyncio.sleep(0.02)
        assert found == ANSWERS
    redis_server.kill()
    assert await cache.find("k", RAILS) is None
    await cache.keep("k", ANSWERS)
    assert [record.message[:13] for record in caplog.records if "Redis" in record.message] == [
        "Redis is away", "Redis is away",
    ]  # fmt: skip
