"""The safety process: policy, checks and the processor wired together. Every decision is the core's."""

import asyncio
import gc
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from schemas.stream import Recall
from schemas.topics import STREAMS
from services.bus import BusSettings, Producer
from services.policy import Keeper, Policy
from services.processor import Effect, Processor, Reading, Write
from services.runtime import metrics
from services.runtime.clock import now_us
from services.runtime.logging import logger
from services.safety.checker import Checker
from services.safety.checks import Check, CheckFactory
from services.safety.core import Safety
from services.safety.looks import Answer, Broke, Look, Tier
from services.safety.settings import SafetySettings

GROUP: Final = "safety"

MAX_VERSIONS: Final = 16
"""Policy versions whose checks are kept for requests that began with them."""

METRICS_S: Final = 1.0
REWIND_MARGIN_MS: Final = 5_000

_log = logger("safety")


class SafetyService:
    """One safety process.

    Args:
        settings: How it runs.
        bus: Where the broker is.
        factories: What answers the looks of each tier.
        on_ready: Called once, when everything that it holds is decided about.
    """

    def __init__(
        self,
        settings: SafetySettings,
        bus: BusSettings,
        factories: Mapping[Tier, CheckFactory],
        on_ready: Callable[[], None],
    ) -> None:
        self._factories = factories
        self._checks: dict[str, dict[Tier, Check]] = {}
        self._keeper = Keeper(settings.policy, self._prepare)
        self._core = Safety(self.policy, f"{GROUP}/{secrets.token_hex(3)}")
        self._checker = Checker(self._checks_of, self._answered, self._core.waits_for)
        reading = Reading(
            group=GROUP,
            topics=[STREAMS],
            rewind_ms=self.policy.document.deadlines.total_ms[1] + REWIND_MARGIN_MS,  # open requests began within it
            instance_id=settings.safety_instance,
            limit=settings.safety_queue,
        )
        self._processor = Processor(
            bus, reading, self._core, Producer(bus, role="safety"), perform=self._perform, written=_count,
            on_ready=on_ready,
        )  # fmt: skip

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._keeper.current

    @property
    def ready(self) -> bool:
        """Whether everything that it holds is decided about."""
        return self._processor.ready

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            BrokenPolicy: A check does not take the policy it begins with.
        """
        await self._prepare(self.policy)
        gc.collect()
        gc.freeze()  # NeMo and the tables stay for good: the collector must not walk a million objects while text waits
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._processor.run())
                tasks.create_task(self._keeper.watch())
                tasks.create_task(self._measure())
        finally:
            await self._checker.stop()
            for checks in self._checks.values():
                for check in checks.values():
                    await check.close()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Look):
            self._checker.put(effect)

    def _answered(self, look: Look, answer: Answer) -> None:
        metrics.LOOKS.labels(look.tier, "unchecked" if isinstance(answer, Broke) else "seen").inc()
        self._processor.do(self._core.answer(look, answer, now_us()))

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(METRICS_S)
            if expired := self._core.expired:
                self._core.expired = 0
                metrics.SAFETY_EXPIRED.inc(expired)
                _log.warning("%d request(s) were never closed and are forgotten", expired)
            metrics.SAFETY_OPEN.set(self._core.open)
            metrics.LOOKS_OPEN.set(self._core.looking)

    def _checks_of(self, look: Look) -> Mapping[Tier, Check]:
        return self._checks[look.policy.version]

    async def _prepare(self, policy: Policy) -> None:
        """Build a policy's checks before it counts; the oldest of too many are closed."""
        if policy.version not in self._checks:
            tiers: tuple[Tier, ...] = (1, 2) if policy.document.safety.classifiers else (1,)
            self._checks[policy.version] = {tier: await self._factories[tier](policy) for tier in tiers}
            if len(self._checks) > MAX_VERSIONS:
                oldest = next(iter(self._checks))
                for check in self._checks.pop(oldest).values():
                    await check.close()
        self._core.policy = policy


def _count(write: Write) -> None:
    if isinstance(write.event, Recall):
        metrics.RECALLS.labels(write.event.action, write.event.category).inc()
    else:
        metrics.CLEARED.inc()
