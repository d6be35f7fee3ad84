from types import SimpleNamespace

import pytest
from redis.exceptions import OutOfMemoryError

from services.rails.cache import MAX_EDITS, RailCache
from services.rails.rail import PASSED, Edit, RailAnswer
from services.runtime import UserError


@pytest.mark.parametrize("url", ["localhost:6379", "redis://:hush#1@h:6379", "redis://h:99999", "redis://a..b"])
def test_an_address_that_is_none_is_a_mistake_and_not_repeated(url):
    with pytest.raises(UserError, match=r"^RAILBUS_REDIS_URL=\(hidden\): must be redis://HOST:PORT, or rediss://"):
        RailCache(url)


@pytest.mark.parametrize(("edits", "kept"), [(MAX_EDITS, True), (MAX_EDITS + 1, False)])
async def test_answers_that_take_much_memory_are_not_kept(edits, kept):
    cache = RailCache("redis://127.0.0.1:6379")  # never opened
    answers = {"pii": RailAnswer(edits=(Edit(0, 0, 1, "[email address]"),) * edits), "secrets": PASSED}
    await cache.keep("k", answers)
    assert await cache.find("k", ("pii", "secrets")) == (answers if kept else None)


async def test_a_redis_that_is_full_can_still_be_asked(caplog):
    async def refuse(*_, **__):
        raise OutOfMemoryError("command not allowed when used memory > 'maxmemory'")

    cache = RailCache("redis://127.0.0.1:6379")
    cache._redis, cache._connected = SimpleNamespace(set=refuse), True
    await cache.keep("k", {"secrets": PASSED})
    assert cache._connected
    assert not caplog.records
