"""Rate limits and idempotency keys of tenants, shared by all edges in Redis.

Without a reachable Redis, each process has its own limits and keys.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.edge.requests.rate_limit import LocalLimiter, Rate
from services.runtime.logging import logger
from services.runtime.settings import checked_redis_url

_log = logger("edge")

IDEMPOTENCY_TTL_S: Final = 86_400
"""Seconds for which an idempotency key is kept. A request with the same key and body then gets the first answer."""

MAX_LOCAL_RECORDS: Final = 10_000
"""Maximum number of idempotency keys that are kept in the process. Beyond it, the oldest is dropped."""

REDIS_TIMEOUT_S: Final = 0.25
"""Time-out of a call to Redis, in seconds."""

REDIS_RETRY_US: Final = 2_000_000
"""After a failed call, Redis is not called again for this many microseconds."""

# ``rate_limit.gcra`` as a Lua script. It uses the clock of Redis, so that all edges use the same clock.
_GCRA_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = tonumber(redis.call('GET', KEYS[1]) or '0')
local following = math.max(arrival, now) + tonumber(ARGV[1])
local wait = following - now - tonumber(ARGV[2])
if wait > 0 then return wait end
redis.call('SET', KEYS[1], string.format('%.0f', following), 'PX', math.ceil((following - now) / 1000) + 1000)
return 0
"""


_GIVE_BACK_SCRIPT: Final = """
local arrival = tonumber(redis.call('GET', KEYS[1]) or '0')
if arrival > 0 then redis.call('SET', KEYS[1], string.format('%.0f', arrival - tonumber(ARGV[1])), 'KEEPTTL') end
return 0
"""

Quota = Literal["requests", "tokens", "resumes"]
"""The name of a rate limit, which applies to each tenant."""


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    """The id of the first request with an idempotency key, and the hash of that request's body."""

    request_id: str
    body_hash: str


class LocalRecords:
    """The idempotency records of this process. At most ``size`` are kept, each for ``IDEMPOTENCY_TTL_S``."""

    def __init__(self, size: int = MAX_LOCAL_RECORDS) -> None:
        self._size = size
        self._records: OrderedDict[str, tuple[IdempotencyRecord, int]] = OrderedDict()

    def find(self, name: str, now_us: int) -> tuple[IdempotencyRecord | None, int]:
        """Return the record of ``name``, and for how many more microseconds it is kept; None and 0 if there is none."""
        known, expires_us = self._records.get(name, (None, 0))
        return (known, expires_us - now_us) if now_us < expires_us else (None, 0)

    def claim(self, name: str, record: IdempotencyRecord, now_us: int) -> IdempotencyRecord | None:
        """If ``name`` has no record, store ``record`` and return None. Otherwise return the stored record."""
        known, _ = self.find(name, now_us)
        if known is not None:
            return known
        self._records.pop(name, None)
        self._records[name] = record, now_us + IDEMPOTENCY_TTL_S * 1_000_000
        if len(self._records) > self._size:
            self._records.popitem(last=False)
        return None

    def forget(self, name: str) -> None:
        self._records.pop(name, None)


class SharedLimits:
    """Rate limits and idempotency keys of all tenants, in Redis or, if Redis is not reachable, in this process."""

    def __init__(self, url: str | None, rates: Mapping[Quota, Rate]) -> None:
        self._redis: Any = None if url is None else _connect(url)
        self._rates = rates
        self._limiters = {quota: LocalLimiter(rate) for quota, rate in rates.items()}
        self._records = LocalRecords()
        self._redis_retry_at_us = 0
        self._redis_down = False

    async def wait_us(self, quota: Quota, tenant: str, now_us: int, units: int = 1) -> int:
        """Charge the tenant for ``units`` requests or tokens, and return 0.

        If the limit does not allow them now, charge nothing and return how many microseconds to wait.
        """
        rate = self._rates.get(quota)
        if rate is None:
            return 0
        if self._usable(now_us):
            costs = (rate.cost_us(units), rate.tolerance_us)
            try:
                return int(await self._call_redis(self._redis.eval(_GCRA_SCRIPT, 1, _rate_key(quota, tenant), *costs)))
            except (RedisError, OSError) as error:
                self._redis_failed(error, now_us)
        return self._limiters[quota].wait_us(tenant, now_us, units)

    async def give_back(self, quota: Quota, tenant: str, now_us: int, units: int) -> None:
        rate = self._rates.get(quota)
        if rate is None or units <= 0:
            return
        if self._usable(now_us):
            try:
                call = self._redis.eval(_GIVE_BACK_SCRIPT, 1, _rate_key(quota, tenant), rate.cost_us(units))
                await self._call_redis(call)
            except (RedisError, OSError) as error:
                self._redis_failed(error, now_us)
            else:
                return
        self._limiters[quota].give_back(tenant, rate.cost_us(units))

    async def claim(self, tenant: str, key: str, record: IdempotencyRecord, now_us: int) -> IdempotencyRecord | None:
        """If the key has no record, store ``record`` and return None. Otherwise return the stored record.

        The process also keeps its own copy of every record that it claims. So it still knows its own keys while Redis
        cannot be reached, and after Redis has come back without them.
        """
        name = _redis_key(tenant, key)
        if self._usable(now_us):
            own, left_us = self._records.find(name, now_us)
            offered, kept_s = (record, IDEMPOTENCY_TTL_S) if own is None else (own, -(-left_us // 1_000_000))
            value = f"{offered.request_id} {offered.body_hash}"
            try:
                known = await self._call_redis(self._redis.set(name, value, nx=True, get=True, ex=kept_s))
            except (RedisError, OSError) as error:
                self._redis_failed(error, now_us)
            else:
                if known is not None:
                    return IdempotencyRecord(*known.decode().split(" ", 1))
                return own or self._records.claim(name, record, now_us)
        return self._records.claim(name, record, now_us)

    async def forget(self, tenant: str, key: str, now_us: int) -> None:
        name = _redis_key(tenant, key)
        self._records.forget(name)
        if self._usable(now_us):
            try:
                await self._call_redis(self._redis.delete(name))
            except (RedisError, OSError) as error:
                self._redis_failed(error, now_us)

    async def close(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    async def _call_redis(self, call: Awaitable[Any]) -> Any:
        answer = await call
        if self._redis_down:
            self._redis_down = False
            _log.warning("Redis can be used again: limits and idempotency keys are shared")
        return answer

    def _usable(self, now_us: int) -> bool:
        return self._redis is not None and now_us >= self._redis_retry_at_us

    def _redis_failed(self, error: Exception, now_us: int) -> None:
        self._redis_retry_at_us = now_us + REDIS_RETRY_US
        if not self._redis_down:
            self._redis_down = True
            _log.warning(
                "Redis cannot be used (%s): limits and idempotency keys apply per process", type(error).__name__
            )


def _rate_key(quota: Quota, tenant: str) -> str:
    return f"railbus:rate:{quota}:{tenant}"


def _redis_key(tenant: str, key: str) -> str:
    return f"railbus:once:{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"


def _connect(url: str) -> Any:
    with checked_redis_url(url):
        return Redis.from_url(
            url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )  # fmt: skip
