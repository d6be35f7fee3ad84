"""Tests of the cache of the rails' answers, in memory and in a real Redis.

The keys of the cache contain no text of a prompt. No prompt waits long for Redis.
"""

import asyncio
import hashlib
import signal
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis.asyncio

from services.rails import cache as module
from services.rails.cache import LocalCache, RailCache, key_of
from services.rails.rail import PASSED, Edit, RailAnswer
from tests.unit.rails.world import policy, request

ANSWERS = {"pii": RailAnswer(edits=(Edit(0, 3, 9, "[email address]"),), detail="mask pii/email"), "secrets": PASSED}
RAILS = ("secrets", "pii")
USUAL_WAIT_S = module.WAIT_S


@asynccontextmanager
async def opened(url):
    held = RailCache(url)
    await held.open()
    yield held
    await held.close()


@pytest.fixture
def patient(monkeypatch):
    """Let the cache wait longer for Redis, so that its lookups do not time out on a busy machine."""
    monkeypatch.setattr(module, "WAIT_S", 10.0)
    monkeypatch.setattr(module, "CONNECT_S", 20.0)


@pytest.fixture
async def cache(redis_server):
    async with opened(redis_server.url) as held:
        yield held


@pytest.fixture
async def elsewhere(redis_server):
    """Yield the cache of another rails process that uses the same Redis."""
    async with opened(redis_server.url) as held:
        yield held


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


@pytest.mark.usefixtures("patient")
async def test_what_an_older_version_of_the_rails_kept_is_not_found(cache, redis_server, monkeypatch):
    """A result that an older version of the rails cached is not used.

    The older version may have read only a part of the prompt.
    """
    asked = request("a xylophone", "b")
    words = msgspec.json.encode((asked.model, [(message.role, message.content) for message in asked.messages]))
    first = f"railbus:rails:{policy().version}:{asked.tenant}:{hashlib.sha256(words).hexdigest()}"
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        await client.set(first, msgspec.json.encode(ANSWERS))
    assert await cache.find(key_of(policy(), asked), RAILS) is None
    await cache.keep(key_of(policy(), asked), ANSWERS)
    monkeypatch.setattr(module, "RULES", module.RULES + 1)
    assert await cache.find(key_of(policy(), asked), RAILS) is None


@pytest.mark.usefixtures("patient")
async def test_what_was_kept_is_found_by_the_same_rails_only(cache, elsewhere):
    assert await cache.find("k", RAILS) is None
    await elsewhere.keep("k", ANSWERS)
    for held in (cache, cache, elsewhere):  # from Redis, then from this process
        assert await held.find("k", RAILS) == ANSWERS
        assert await held.find("k", (*RAILS, "jailbreak")) is None
        assert await held.find("k", ("pii",)) is None


@pytest.mark.usefixtures("patient")
async def test_many_at_once_cost_one_round_trip_or_two(cache, elsewhere):
    await elsewhere.keep("k7", ANSWERS)
    asked = [f"k{n % 200}" for n in range(400)]
    found = await asyncio.gather(*(cache.find(key, RAILS) for key in asked))
    assert [key for key, answers in zip(asked, found, strict=True) if answers is not None] == ["k7", "k7"]
    calls = (await cache._redis.info("commandstats"))["cmdstat_mget"]["calls"]
    assert calls <= 2


async def test_nobody_waits_for_an_answer_that_never_comes(cache, monkeypatch):
    async def stuck():
        await asyncio.Event().wait()

    monkeypatch.setattr(cache, "_look_up_all", stuck)
    async with asyncio.timeout(30):
        assert await cache.find("k", RAILS) is None


def test_local_cache_evicts_the_old_and_the_least_recently_used():
    local = LocalCache(size=2, ttl_s=10.0)
    local.keep("a", ANSWERS, 0.0)
    local.keep("b", ANSWERS, 1.0)
    assert local.find("a", 9.9) == ANSWERS
    local.keep("c", ANSWERS, 9.9)
    assert [local.find(key, 9.9) is not None for key in "abc"] == [True, False, True]
    assert local.find("a", 10.0) is None
    assert local.find("c", 10.0) == ANSWERS


@pytest.mark.usefixtures("patient")
async def test_nonsense_is_no_answer(cache, redis_server):
    async with redis.asyncio.from_url(redis_server.url) as client:
        for body in (b"", b"\xff", b"[]", b'{"pii": 1, "secrets": {}}', b'{"pii": {"edits": [[0]]}, "secrets": {}}'):
            await client.set("k", body)
            assert await cache.find("k", RAILS) is None


@pytest.mark.usefixtures("patient")
async def test_away_or_hung_it_costs_one_short_wait_and_is_said_once(
    cache, elsewhere, redis_server, monkeypatch, caplog
):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    await elsewhere.keep("k", ANSWERS)
    redis_server.signal(signal.SIGSTOP)
    with monkeypatch.context() as usual:
        usual.setattr(module, "WAIT_S", USUAL_WAIT_S)
        async with asyncio.timeout(9):  # less than a patient one waits
            assert await cache.find("k", RAILS) is None
            assert await cache.find("k", RAILS) is None
    redis_server.signal(signal.SIGCONT)  # long timeouts again: a slow answer would be logged as another outage
    found = None
    async with asyncio.timeout(60):
        while found is None:
            assert await cache.find("other", RAILS) is None  # a late answer is not taken for another question's
            found = await cache.find("k", RAILS)
            await asyncio.sleep(0.02)
    assert found == ANSWERS
    redis_server.kill()
    assert await cache.find("another", RAILS) is None
    assert await cache.find("k", RAILS) == ANSWERS  # from this process
    await cache.keep("k", ANSWERS)
    assert [record.message[:20] for record in caplog.records if "Redis" in record.message] == [
        "Redis is unreachable", "Redis is unreachable",
    ]  # fmt: skip


@pytest.mark.usefixtures("patient")
async def test_redis_forgets_an_answer_after_an_hour(cache):
    await cache.keep("k", ANSWERS)
    assert 0 < await cache._redis.ttl("k") <= 3_600
