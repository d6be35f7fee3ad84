"""What edges share in Redis: rates and idempotency keys. Without Redis, or while it is away, each remembers its own."""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.edge.limits import LocalLimiter, Rate
from services.runtime.logging import logger

_log = logger("edge")

KEEP_S: Final = 86_400
"""For how long an idempotency key stands for its request."""

MAX_KEYS: Final = 10_000
"""Most idempotency keys that a process remembers by itself; the oldest is forgotten."""

TIMEOUT_S: Final = 0.25
"""Longest time that a request waits for Redis."""

RETRY_US: Final = 2_000_000
"""After a failure Redis is left alone for so long."""

# The generic cell rate algorithm of ``limits.decide``, on the clock of Redis: one for all edges.
_RATE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = tonumber(redis.call('GET', KEYS[1]) or '0')
local following = math.max(arrival, now) + tonumber(ARGV[1])
local wait = following - now - tonumber(ARGV[2])
if wait > 0 then return wait end
redis.call('SET', KEYS[1], string.format('%.0f', following), 'PX', math.ceil((following - now) / 1000) + 1000)
return 0
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What an idempotency key stands for: the request, and a hash of the body that it was first sent with."""

    request_id: str
    body_hash: str


class Memory:
    """Rates and idempotency keys."""

    def __init__(self, url: str | None, rate: Rate | None) -> None:
        self._redis: Any = None if url is None else _connect(url)
        self._rate = rate
        self._limiter = None if rate is None else LocalLimiter(rate)
        self._claims: OrderedDict[str, Claim] = OrderedDict()
        self._away_until_us = 0
        self._away = False

    async def wait_us(self, tenant: str, now_us: int) -> int:
        """0 when a request of the tenant may pass now, else how long it must wait, in microseconds."""
        if self._rate is None or self._limiter is None:
            return 0
        if self._usable(now_us):
            name, rate = f"railbus:rate:{tenant}", self._rate
            try:
                return int(await self._heard(self._redis.eval(_RATE, 1, name, rate.interval_us, rate.tolerance_us)))
            except (RedisError, OSError) as error:
                self._lost(error, now_us)
        return self._limiter.wait_us(tenant, now_us)

    async def claim(self, tenant: str, key: str, claim: Claim, now_us: int) -> Claim | None:
        """Let the key stand for a new request; or, if it stands for one already, that one."""
        name = _name(tenant, key)
        if self._usable(now_us):
            value = f"{claim.request_id} {claim.body_hash}"
            try:
                known = await self._heard(self._redis.set(name, value, nx=True, get=True, ex=KEEP_S))
                return None if known is None else Claim(*known.decode().split(" ", 1))
            except (RedisError, OSError) as error:
                self._lost(error, now_us)
        known_here = self._claims.setdefault(name, claim)
        if len(self._claims) > MAX_KEYS:
            self._claims.popitem(last=False)
        return None if known_here is claim else known_here

    async def forget(self, tenant: str, key: str, now_us: int) -> None:
        """The request of a key was never made."""
        name = _name(tenant, key)
        self._claims.pop(name, None)
        if self._usable(now_us):
            try:
                await self._heard(self._redis.delete(name))
            except (RedisError, OSError) as error:
                self._lost(error, now_us)

    async def close(self) -> None:
        """Disconnect."""
        if self._redis is not None:
            await self._redis.aclose()

    async def _heard(self, asked: Awaitable[Any]) -> Any:
        answer = await asked
        if self._away:
            self._away = False
            _log.warning("Redis is back: limits and idempotency keys are shared again")
        return answer

    def _usable(self, now_us: int) -> bool:
        return self._redis is not None and now_us >= self._away_until_us

    def _lost(self, error: Exception, now_us: int) -> None:
        self._away_until_us = now_us + RETRY_US
        if not self._away:
            self._away = True
            _log.warning(
                "Redis is away (%s): limits and idempotency keys hold in this process only", type(error).__name__
            )


def _name(tenant: str, key: str) -> str:
    return f"railbus:once:{tenant}:{hashlib.sha256(key.encode()).hexdigest()}"


def _connect(url: str) -> Any:
    return Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )  # fmt: skip
