"""What rails said of the same words before: in this process, and in Redis. Holds spans and reasons, no prompt.

Admission is not kept: it depends on more than the prompt, and costs less than asking Redis.
"""

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
from redis.exceptions import RedisError

from schemas.requests import Request
from services.policy import Policy
from services.rails.rail import Answer
from services.runtime import metrics
from services.runtime.logging import logger

WAIT_S: Final = 0.05
"""Longest wait for Redis: its answer saves no more than a classifier's time."""

CONNECT_S: Final = 2.0
"""Longest wait for a connection; no request waits for one."""

PAUSE_S: Final = 1.0
"""Between two tries to reach it again."""

TTL_S: Final = 3_600

MAX_LOCAL: Final = 4_096
"""Prompts whose answers are also kept in this process; an answer takes about a kilobyte."""

_log = logger("rails")

Answers = dict[str, Answer]


def key_of(policy: Policy, request: Request) -> str:
    """Same policy, tenant, model and words: same key."""
    words = msgspec.json.encode((request.model, [(message.role, message.content) for message in request.messages]))
    return f"railbus:rails:{policy.version}:{request.tenant}:{hashlib.sha256(words).hexdigest()}"


class LocalCache:
    """The answers this process saw last, each for as long as Redis would keep it. The clock is an argument."""

    def __init__(self, size: int = MAX_LOCAL, ttl_s: float = TTL_S) -> None:
        self._size = size
        self._ttl_s = ttl_s
        self._kept: OrderedDict[str, tuple[float, Answers]] = OrderedDict()

    def find(self, key: str, now_s: float) -> Answers | None:
        """What is kept and not too old."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        if now_s >= kept[0]:
            del self._kept[key]
            return None
        self._kept.move_to_end(key)
        return kept[1]

    def keep(self, key: str, answers: Answers, now_s: float) -> None:
        """Keep it; the one not asked for longest goes when there are too many."""
        self._kept[key] = (now_s + self._ttl_s, answers)
        self._kept.move_to_end(key)
        if len(self._kept) > self._size:
            self._kept.popitem(last=False)


class Cache:
    """Never in the way: when Redis is away, slow or holds nonsense there is no answer, and that is said once.

    There is one connection, made beside the requests; while there is none nobody asks. Everything that is asked while
    an answer is on its way is asked together next: many requests at once cost one round trip, not one each.
    """

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=1, timeout=CONNECT_S, socket_timeout=CONNECT_S, socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        self._redis: Redis = Redis.from_pool(pool)
        self._local = LocalCache()
        self._is_there = False
        self._said_away = False
        self._reaching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._wanted: dict[str, asyncio.Future[bytes | None]] = {}

    async def open(self) -> None:
        """Connect, if that goes quickly; otherwise it is tried on."""
        await asyncio.wait([self._reach()], timeout=CONNECT_S)

    async def find(self, key: str, rails: tuple[str, ...]) -> Answers | None:
        """The answers of exactly these rails, if they are kept."""
        answers = self._local.find(key, time.monotonic())
        if answers is None:
            answers = await self._find_far(key)
        found = answers is not None and tuple(sorted(answers)) == tuple(sorted(rails))
        metrics.VERDICT_CACHE.labels("hit" if found else "miss").inc()
        return answers if found else None

    async def keep(self, key: str, answers: Mapping[str, Answer]) -> None:
        """Remember for an hour."""
        self._local.keep(key, dict(answers), time.monotonic())
        body = msgspec.json.encode(dict(answers))
        await self._ask(lambda: self._redis.set(key, body, ex=TTL_S))

    async def close(self) -> None:
        """Close the connection; one that does not close in time is left to the operating system."""
        for task in (self._reaching, self._asking):
            if task is not None:
                task.cancel()
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await self._redis.aclose()

    async def _find_far(self, key: str) -> Answers | None:
        if not self._is_there:
            return None
        try:
            async with asyncio.timeout(2 * WAIT_S):  # for the round trip under way, and the next
                body = await asyncio.shield(self._want(key))
            answers = None if body is None else msgspec.json.decode(body, type=Answers)
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
        if self._asking is None or self._asking.done():
            self._asking = loop.create_task(self._ask_for_all())
        return wanted

    async def _ask_for_all(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            bodies: Any = None
            try:
                bodies = await self._ask(lambda keys=list(wanted): self._redis.mget(keys))  # type: ignore[misc]
            finally:
                for body, future in zip(bodies or [None] * len(wanted), wanted.values(), strict=True):
                    if not future.done():
                        future.set_result(body if isinstance(body, bytes) else None)

    async def _ask(self, command: Callable[[], Awaitable[Any]]) -> Any:
        if not self._is_there:
            return None
        try:
            async with asyncio.timeout(WAIT_S):
                return await command()
        except (RedisError, OSError, TimeoutError) as error:
            if self._is_there:  # and not noticed by another meanwhile
                self._is_there = False
                self._say_away(error)
                self._reach()
            return None

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
