"""The shell: reads the stream log, lets the core decide, writes what it says, runs the checks it asks for."""

import asyncio
import gc
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from schemas.registry import reads
from schemas.stream import Recall, StreamEvent
from schemas.topics import STREAMS
from services.bus import BusSettings, GroupReader, Producer, Received, Room, TailReader, TopicPartitions, Unread
from services.policy import Keeper, Policy
from services.runtime import metrics
from services.runtime.clock import now_ms, now_us
from services.runtime.logging import logger
from services.safety.catchup import Catchup
from services.safety.checker import Checker
from services.safety.checks import Check, CheckFactory
from services.safety.core import Effect, Safety
from services.safety.looks import Answer, Broke, Look, Tier
from services.safety.settings import SafetySettings

GROUP: Final = "safety"

_READ: Final = reads("safety")[STREAMS.name]

MAX_VERSIONS: Final = 16
"""Policy versions whose checks are kept for requests that began with them."""

SWEEP_S: Final = 1.0
REWIND_MARGIN_MS: Final = 5_000

_log = logger("safety")


class SafetyService:
    """One safety process.

    Args:
        settings: How it runs.
        bus: Where the broker is.
        factories: What answers the looks of each tier.
    """

    def __init__(self, settings: SafetySettings, bus: BusSettings, factories: Mapping[Tier, CheckFactory]) -> None:
        self._bus = bus
        self._instance = settings.safety_instance
        self._factories = factories
        self._keeper = Keeper(settings.policy, self._prepare)
        self._core = Safety(self._keeper.current, f"safety/{secrets.token_hex(3)}")
        self._checker = Checker(self._checks_of, self._answered)
        self._checks: dict[str, dict[Tier, Check]] = {}
        self._catchup = Catchup()
        self._room = Room(settings.safety_queue)
        self._taken = 0
        self._effects: deque[Effect] = deque()  # bounded by one step and the looks under way
        self._wake = asyncio.Event()
        self._joined = asyncio.Event()
        self._producer = Producer(bus, role="safety")
        self._lookup = TailReader(bus, handler=lambda _: None)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._keeper.current

    async def run(self, ready: Callable[[], None]) -> None:
        """Works until cancelled; says ``ready`` once the group was joined.

        Raises:
            BrokenPolicy: A check does not take the policy it begins with.
        """
        await self._prepare(self._keeper.current)
        gc.collect()
        gc.freeze()  # NeMo and the tables stay for good: the collector must not walk a million objects while text waits
        await self._producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lookup.run())
                tasks.create_task(self._reader().run())
                tasks.create_task(self._keeper.watch())
                tasks.create_task(self._pump())
                tasks.create_task(self._sweep())
                await self._joined.wait()
                ready()
        finally:
            await self._checker.stop()
            await self._producer.stop()
            for checks in self._checks.values():
                for check in checks.values():
                    await check.close()

    def _reader(self) -> GroupReader:
        return GroupReader(
            self._bus,
            topics=[STREAMS],
            group=GROUP,
            handler=self._handle,
            room=self._room,
            on_assigned=self._on_assigned,
            instance_id=self._instance,
            commit="never",
            rewind_ms=self._rewind_ms,
        )

    @property
    def _rewind_ms(self) -> int:
        """Open requests began within the longest deadline."""
        return self._keeper.current.document.deadlines.total_ms[1] + REWIND_MARGIN_MS

    async def _on_assigned(self, partitions: TopicPartitions) -> None:
        since_ms = now_ms() - self._rewind_ms
        numbers = sorted(partition for _, partition in partitions)
        ends = await asyncio.gather(*(self._lookup.end_offset(STREAMS, number) for number in numbers))
        begins = await asyncio.gather(*(self._lookup.offset_at(STREAMS, number, since_ms) for number in numbers))
        self._checker.clear()
        self._effects.clear()
        self._core.assign(numbers)
        self._give(self._taken)
        behind = {n: end for n, begin, end in zip(numbers, begins, ends, strict=True) if begin < end}
        self._catchup.begin(behind, time.monotonic())
        for number in numbers:
            if number not in behind:
                self._do(self._core.caught_up(number, now_us()))
        self._joined.set()

    def _handle(self, records: Sequence[Received | Unread]) -> None:
        self._core.policy = self._keeper.current
        now_s = time.monotonic()
        taken = 0
        caught_up: list[int] = []
        for record in records:
            if isinstance(record, Received) and isinstance(record.event, StreamEvent) and type(record.event) in _READ:
                taken += self._core.take(record.partition, record.event, record.traceparent)
            if self._catchup.read(record.partition, record.offset, now_s):
                caught_up.append(record.partition)
        self._room.take(taken)
        self._taken += taken
        for partition in caught_up:
            self._do(self._core.caught_up(partition, now_us()))
        self._wake.set()

    async def _pump(self) -> None:
        """The one place that writes, so that events of a request leave in the order in which they were decided."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._core.busy or self._effects:
                effects, events = self._core.step(now_us())
                self._give(events)
                self._effects.extend(effects)
                while self._effects:
                    await self._perform(self._effects.popleft())
                await asyncio.sleep(0)

    async def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Look):
            self._checker.put(effect)
            return
        event = effect.event
        if isinstance(event, Recall):
            metrics.RECALLS.labels(event.action, event.category).inc()
        else:
            metrics.CLEARED.inc()
        await self._producer.post(STREAMS, event, traceparent=effect.traceparent)

    def _answered(self, look: Look, answer: Answer) -> None:
        metrics.LOOKS.labels(look.tier, "unchecked" if isinstance(answer, Broke) else "seen").inc()
        self._do(self._core.answer(look, answer, now_us()))

    def _do(self, effects: list[Effect]) -> None:
        self._effects.extend(effects)
        self._wake.set()

    def _give(self, events: int) -> None:
        self._taken -= events
        if events:
            self._room.give(events)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for partition in self._catchup.quiet(time.monotonic()):
                self._do(self._core.caught_up(partition, now_us()))
            if expired := self._core.expire(now_us()):
                metrics.SAFETY_EXPIRED.inc(expired)
                _log.warning("%d request(s) were never closed and are forgotten", expired)
            metrics.SAFETY_OPEN.set(self._core.open)
            metrics.LOOKS_OPEN.set(self._core.looking)

    def _checks_of(self, look: Look) -> Mapping[Tier, Check]:
        return self._checks[look.policy.version]

    async def _prepare(self, policy: Policy) -> None:
        """Build a policy's checks before it counts; the oldest of too many are closed."""
        if policy.version in self._checks:
            return
        tiers: tuple[Tier, ...] = (1, 2) if policy.document.safety.classifiers else (1,)
        self._checks[policy.version] = {tier: await self._factories[tier](policy) for tier in tiers}
        if len(self._checks) > MAX_VERSIONS:
            oldest = next(iter(self._checks))
            for check in self._checks.pop(oldest).values():
                await check.close()
