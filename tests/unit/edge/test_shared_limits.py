import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from services.edge.requests.shared_limits import (
    IDEMPOTENCY_TTL_S,
    REDIS_RETRY_US,
    IdempotencyRecord,
    SharedLimits,
)
from services.runtime import UserError

FIRST, SECOND, THIRD = (IdempotencyRecord(f"request-{number}", "hash") for number in range(3))


class FakeRedis:
    """The commands of Redis that claim and free a key. While ``away`` is true, they fail."""

    def __init__(self):
        self.values = {}
        self.away = False
        self.kept_s = 0

    async def set(self, name, value, *, nx, get, ex):
        self._check()
        assert nx
        assert get
        known = self.values.get(name)
        if known is None:
            self.values[name], self.kept_s = value.encode(), ex
        return known

    async def delete(self, name):
        self._check()
        self.values.pop(name, None)

    def _check(self):
        if self.away:
            raise RedisConnectionError


def limits_with(redis):
    limits = SharedLimits(None, {})
    limits._redis = redis
    return limits


@pytest.mark.parametrize("url", ["localhost:6379", "redis://:hush#1@h:6379", "redis://h:99999", "redis://a..b"])
def test_an_address_that_is_none_is_a_mistake_and_not_repeated(url):
    with pytest.raises(UserError, match=r"^RAILBUS_REDIS_URL=\(hidden\): must be redis://HOST:PORT, or rediss://"):
        SharedLimits(url, {})


async def test_a_key_that_was_claimed_without_redis_is_known_with_it():
    redis = FakeRedis()
    edge, other = limits_with(redis), limits_with(redis)
    redis.away = True
    assert await edge.claim("t", "k", FIRST, 0) is None
    redis.away = False
    assert await edge.claim("t", "k", SECOND, REDIS_RETRY_US - 1) == FIRST
    assert redis.values == {}, "it is not called again so soon"
    assert await edge.claim("t", "k", SECOND, 3_600_000_000) == FIRST
    assert redis.kept_s == IDEMPOTENCY_TTL_S - 3_600
    assert await other.claim("t", "k", THIRD, 0) == FIRST


@pytest.mark.parametrize("lost", [False, True])
async def test_a_key_that_was_claimed_with_redis_is_known_without_it(lost):
    redis = FakeRedis()
    edge = limits_with(redis)
    assert await edge.claim("t", "k", FIRST, 0) is None
    if lost:  # Redis was started again, and keeps nothing on disk
        redis.values.clear()
    redis.away = not lost
    assert await edge.claim("t", "k", SECOND, 1) == FIRST
    redis.away = False
    await edge.forget("t", "k", 2 * REDIS_RETRY_US)
    assert await edge.claim("t", "k", THIRD, 2 * REDIS_RETRY_US) is None


async def test_redis_counts_more_than_what_an_edge_remembers():
    redis = FakeRedis()
    edge, other = limits_with(redis), limits_with(redis)
    assert await edge.claim("t", "k", FIRST, 0) is None
    await other.forget("t", "k", 0)
    assert await other.claim("t", "k", SECOND, 0) is None
    assert await edge.claim("t", "k", THIRD, 0) == SECOND
