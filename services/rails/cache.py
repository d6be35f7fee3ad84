"""What rails said of the same words before, in Redis. Holds spans and reasons, and no word of a prompt.

Admission is not kept: it depends on more than the prompt, and costs less than asking Redis.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
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

PAUSE_S: Final = 1.0
"""After a failure Redis is left alone for so long."""

TTL_S: Final = 3_600

_log = logger("rails")

Answers = dict[str, Answer]


def key_of(policy: Policy, request: Request) -> str:
    """Same policy, tenant, model and words: same key."""
    words = msgspec.json.encode((request.model, [(message.role, message.content) for message in request.messages]))
    return f"railbus:rails:{policy.version}:{request.tenant}:{hashlib.sha256(words).hexdigest()}"


class Cache:
    """Never in the way: when Redis is away, slow or holds nonsense there is no answer, and that is said once."""

    def __init__(self, url: str) -> None:
        self._redis: Redis = Redis.from_url(
            url, socket_timeout=WAIT_S, socket_connect_timeout=WAIT_S, retry=Retry(NoBackoff(), 0), max_connections=16
        )
        self._away = False
        self._again_s = 0.0

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
        """Close its connections."""
        await self._redis.aclose()

    async def _ask(self, command: Callable[[], Awaitable[Any]]) -> bytes | None:
        if time.monotonic() < self._again_s:
            return None
        try:
            async with asyncio.timeout(2 * WAIT_S):
                answer = await command()
        except (RedisError, OSError, TimeoutError) as error:
            self._again_s = time.monotonic() + PAUSE_S
            if not self._away:
                self._away = True
                _log.warning("Redis is away (%s): verdicts take longer, nothing else changes", type(error).__name__)
            return None
        if self._away:
            self._away = False
            _log.info("Redis is back")
        return answer if isinstance(answer, bytes) else None
