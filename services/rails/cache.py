"""What rails said of the same words before, in Redis. Holds spans and reasons, and no word of a prompt.

Admission is not kept: it depends on more than the prompt, and costs less than asking Redis.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from schemas.requests import Request
from services.policy import Policy
from services.rails.answers import Answer
from services.runtime import metrics
from services.runtime.logging import logger

WAIT_S: Final = 0.025
"""Longest wait for Redis: its answer saves no more than a classifier's time."""

CONNECT_S: Final = 2.0
"""Longest wait for a connection; no request waits for one."""

PAUSE_S: Final = 1.0
"""Between two tries to reach it again."""

TTL_S: Final = 3_600

_log = logger("rails")

Answers = dict[str, Answer]


def key_of(policy: Policy, request: Request) -> str:
    """Same policy, tenant, model and words: same key."""
    words = msgspec.json.encode((request.model, [(message.role, message.content) for message in request.messages]))
    return f"railbus:rails:{policy.version}:{request.tenant}:{hashlib.sha256(words).hexdigest()}"


class Cache:
    """Never in the way: when Redis is away, slow or holds nonsense there is no answer, and that is said once.

    There is one connection, made beside the requests; while there is none nobody asks.
    """

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=1, timeout=CONNECT_S, socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        self._redis: Redis = Redis.from_pool(pool)
        self._is_there = False
        self._said_away = False
        self._reaching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, if that goes quickly; otherwise it is tried on."""
        await asyncio.wait([self._reach()], timeout=CONNECT_S)

    async def find(self, key: str, rails: tuple[str, ...]) -> Answers | None:
        """The answers of exactly these rails, if they are kept."""
        try:
            body = await self._ask(lambda: self._redis.get(key))
            answers = None if body is None else msgspec.json.decode(body, type=Answers)
        except msgspec.DecodeError:
            answers = None
        found = answers is not None and tuple(sorted(answers)) == tuple(sorted(rails))
        metrics.VERDICT_CACHE.labels("hit" if found else "miss").inc()
        return answers if found else None

    async def keep(self, key: str, answers: Mapping[str, Answer]) -> None:
        """Remember for an hour."""
        body = msgspec.json.encode(dict(answers))
        await self._ask(lambda: self._redis.set(key, body, ex=TTL_S))

    async def close(self) -> None:
        """Close the connection; one that does not close in time is left to the operating system."""
        if self._reaching is not None:
            self._reaching.cancel()
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await self._redis.aclose()

    async def _ask(self, command: Callable[[], Awaitable[Any]]) -> bytes | None:
        if not self._is_there:
            return None
        try:
            async with asyncio.timeout(2 * WAIT_S):
                answer = await command()
        except (RedisError, OSError, TimeoutError) as error:
            if self._is_there:  # and not noticed by another meanwhile
                self._is_there = False
                self._say_away(error)
                self._reach()
            return None
        return answer if isinstance(answer, bytes) else None

    def _reach(self) -> asyncio.Task[None]:
        self._reaching = asyncio.get_running_loop().create_task(self._connect())
        return self._reaching

    async def _connect(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._redis.ping()
            except (RedisError, OSError, TimeoutError) as error:
                self._say_away(error)
                await asyncio.sleep(PAUSE_S)
                continue
            if self._said_away:
                _log.info("Redis is back")
            self._is_there, self._said_away = True, False
            return

    def _say_away(self, error: Exception) -> None:
        if not self._said_away:
            self._said_away = True
            _log.warning("Redis is away (%s): verdicts take longer, nothing else changes", type(error).__name__)
