"""A cache of rails' answers, in the process and in Redis. It contains hashes of prompts, but no prompt text."""

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError

from schemas.requests import Request
from services.policy import Policy
from services.rails.rail import RailAnswer
from services.runtime import metrics
from services.runtime.logging import logger
from services.runtime.settings import checked_redis_url

WAIT_S: Final = 0.05
"""Maximum seconds to wait for Redis. It is short, because a cached answer saves no more than the classifier's time."""

CONNECT_S: Final = 2.0
"""Maximum seconds to wait for a connection to Redis. Requests do not wait for it."""

PAUSE_S: Final = 1.0
"""Seconds between two attempts to reconnect."""

TTL_S: Final = 3_600

MAX_LOCAL: Final = 4_096
"""Maximum number of prompts whose answers are also kept in the process, usually about a kilobyte each."""

MAX_EDITS: Final = 100
"""Maximum number of masked parts of a prompt whose answers are cached. The longest prompt may have 14,000, which take a
megabyte or two."""

RULES: Final = 3
"""Part of every key. It must be raised if a rail may now answer otherwise about the same prompt by the same policy.
Without it, answers of older versions would count for an hour after an upgrade."""

_log = logger("rails")

RailAnswers = dict[str, RailAnswer]  # without ``admission``, which depends on more than the prompt


def key_of(policy: Policy, request: Request) -> str:
    """Return the cache key of a request's prompt. It depends on the policy, the tenant, the model and the messages."""
    words = msgspec.json.encode((request.model, [(message.role, message.content) for message in request.messages]))
    return f"railbus:rails:{RULES}:{policy.version}:{request.tenant}:{hashlib.sha256(words).hexdigest()}"


class LocalCache:
    """The most recently used answers of rails in this process. Each is kept for at most ``ttl_s`` seconds."""

    def __init__(self, size: int = MAX_LOCAL, ttl_s: float = TTL_S) -> None:
        self._size = size
        self._ttl_s = ttl_s
        self._kept: OrderedDict[str, tuple[float, RailAnswers]] = OrderedDict()

    def find(self, key: str, now_s: float) -> RailAnswers | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now_s >= kept[0]:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return kept[1]

    def keep(self, key: str, answers: RailAnswers, now_s: float) -> None:
        self._kept[key] = (now_s + self._ttl_s, answers)
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)


class RailCache:
    """The cache of one rails process, in its memory and in Redis. If Redis does not answer, only the memory is used."""

    def __init__(self, url: str) -> None:
        with checked_redis_url(url):
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=1, timeout=CONNECT_S, socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S,
                retry=Retry(NoBackoff(), 0),
            )  # fmt: skip
        self._redis: Redis = Redis.from_pool(pool)
        self._local = LocalCache()
        self._connected = False
        self._reported = False
        self._connecting: asyncio.Task[None] | None = None
        self._looking_up: asyncio.Task[None] | None = None
        self._wanted: dict[str, asyncio.Future[bytes | None]] = {}

    async def open(self) -> None:
        """Connect to Redis. If this takes long, it continues in the background."""
        await asyncio.wait([self._reconnect()], timeout=CONNECT_S)

    async def find(self, key: str, rails: tuple[str, ...]) -> RailAnswers | None:
        """Return the answers cached under ``key``; None if they are missing, or not from exactly the given rails."""
        answers = self._local.find(key, time.monotonic())
        if answers is None:
            answers = await self._find_in_redis(key)
        found = answers is not None and tuple(sorted(answers)) == tuple(sorted(rails))
        metrics.labelled(metrics.VERDICT_CACHE, "hit" if found else "miss").inc()
        return answers if found else None

    async def keep(self, key: str, answers: Mapping[str, RailAnswer]) -> None:
        """Cache the answers of the rails to a prompt, unless they mask more than ``MAX_EDITS`` parts of the prompt."""
        if sum(len(answer.edits) for answer in answers.values()) > MAX_EDITS:
            return
        self._local.keep(key, dict(answers), time.monotonic())
        body = msgspec.json.encode(dict(answers))
        await self._try(lambda: self._redis.set(key, body, ex=TTL_S))

    async def close(self) -> None:
        for task in (self._connecting, self._looking_up):
            if task is not None:
                task.cancel()
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await self._redis.aclose()

    async def _find_in_redis(self, key: str) -> RailAnswers | None:
        if not self._connected:
            return None
        try:
            async with asyncio.timeout(2 * WAIT_S):  # for the current round trip and the next
                body = await asyncio.shield(self._want(key))
            answers = None if body is None else msgspec.json.decode(body, type=RailAnswers)
        except (TimeoutError, msgspec.DecodeError):
            return None
        if answers is not None:
            self._local.keep(key, answers, time.monotonic())
        return answers

    def _want(self, key: str) -> asyncio.Future[bytes | None]:
        loop = asyncio.get_running_loop()
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = loop.create_future()
        if self._looking_up is None or self._looking_up.done():
            self._looking_up = loop.create_task(self._look_up_all())
        return wanted

    async def _look_up_all(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            bodies: Any = None
            try:
                bodies = await self._try(lambda keys=list(wanted): self._redis.mget(keys))  # type: ignore[misc]
            finally:
                for body, future in zip(bodies or [None] * len(wanted), wanted.values(), strict=True):
                    if not future.done():
                        future.set_result(body if isinstance(body, bytes) else None)

    async def _try(self, command: Callable[[], Awaitable[Any]]) -> Any:
        if not self._connected:
            return None
        try:
            async with asyncio.timeout(WAIT_S):
                return await command()
        except OutOfMemoryError:  # a full Redis that evicts nothing still answers lookups
            return None
        except (RedisError, OSError, TimeoutError) as error:
            if self._connected:
                self._connected = False
                self._report_away(error)
                self._reconnect()
            return None

    def _reconnect(self) -> asyncio.Task[None]:
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        return self._connecting

    async def _connect(self) -> None:
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._redis.ping()
            except (RedisError, OSError, TimeoutError) as error:
                self._report_away(error)
                await asyncio.sleep(PAUSE_S)
                continue
            if self._reported:
                _log.info("Redis is reachable again")
            self._connected, self._reported = True, False
            return

    def _report_away(self, error: Exception) -> None:
        if not self._reported:
            self._reported = True
            _log.warning("Redis is unreachable (%s): verdicts take longer, nothing else changes", type(error).__name__)
