"""One process of the safety service. It connects the policy, the checks, the core and the processor."""

import asyncio
import gc
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from schemas.stream import Recall
from schemas.topics import ACCOUNTS, STREAMS
from services.bus import BusSettings, Producer
from services.policy import BrokenPolicy, Policy, PolicyReloader
from services.policy.errors import PolicyFault
from services.processor import Effect, Processor, ProcessorConfig, Write
from services.runtime import metrics
from services.runtime.classes.service_classes import ServiceClasses
from services.runtime.clock import steady_us
from services.runtime.errors import UnavailableError
from services.runtime.logging import logger
from services.safety.checks.executor import Check, CheckExecutor, CheckFactory
from services.safety.core import SafetyCore
from services.safety.decide.check_types import CheckOutcome, CheckRequest, Tier, Unchecked
from services.safety.partition import MAX_OPEN
from services.safety.settings import Settings

GROUP: Final = "safety"

MAX_VERSIONS: Final = 16
"""Maximum number of policy versions whose checks are kept, for requests that started with these versions."""

METRICS_S: Final = 1.0
REWIND_MARGIN_MS: Final = 5_000

_log = logger("safety")


class SafetyService:
    """One safety process.

    Args:
        factories: For each tier, the function that builds a policy's check of answers. Tier 1 is NeMo rails, tier 2 is
            classifiers.
        on_ready: Called once, when the process has caught up with the log.
    """

    def __init__(
        self,
        settings: Settings,
        bus: BusSettings,
        factories: Mapping[Tier, CheckFactory],
        on_ready: Callable[[], None],
    ) -> None:
        self._factories = factories
        self._checks: dict[str, dict[Tier, Check]] = {}
        self._reloader = PolicyReloader(settings.policy, self._prepare)
        self._total_max_ms = settings.total_max_ms
        self._core = SafetyCore(self.policy, f"{GROUP}/{secrets.token_hex(3)}", self._total_max_ms)
        self._executor = CheckExecutor(self._checks_of, self._on_outcome, self._core.waits_for)
        reading = ProcessorConfig(
            group=GROUP,
            topics=[STREAMS],
            rewind_ms=self._total_max_ms + REWIND_MARGIN_MS,
            progress_topic=ACCOUNTS,
            instance_id=settings.safety_instance,
            limit=settings.safety_queue,
        )
        self._producer = Producer(bus, role="safety")
        self._recall_lost = asyncio.Event()
        self._processor = Processor(
            bus, reading, self._core, self._producer, perform=self._perform, on_written=_count,
            on_not_written=self._on_not_written, on_ready=on_ready,
        )  # fmt: skip

    @property
    def policy(self) -> Policy:
        return self._reloader.current

    @property
    def ready(self) -> bool:
        return self._processor.ready

    async def run(self) -> None:
        """Check answers until cancelled.

        Raises:
            BrokenPolicy: The policy that is loaded at the start cannot be used: a check cannot be built, or a deadline
                is too long.
            UnavailableError: A recall could not be written.
        """
        await self._prepare(self.policy)
        gc.collect()
        gc.freeze()  # NeMo and the tables are never freed, so the collector need not walk a million objects
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._processor.run())
                tasks.create_task(self._reloader.watch())
                tasks.create_task(self._measure())
                tasks.create_task(self._end_if_recall_is_lost())
        finally:
            await self._executor.stop()
            for version in tuple(self._checks):
                await self._close_checks(version)

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, CheckRequest):
            self._executor.put(effect)

    def _on_not_written(self, write: Write) -> None:
        if isinstance(write.event, Recall) and not self._recall_lost.is_set():
            # The core counts the recall as written, and goes on to clear the text. No such clearance may reach the log.
            # Then the partition's next owner checks the answer again.
            self._recall_lost.set()
            self._producer.abort(_refused_recall())

    async def _end_if_recall_is_lost(self) -> None:
        await self._recall_lost.wait()
        raise _refused_recall()

    def _on_outcome(self, check: CheckRequest, outcome: CheckOutcome) -> None:
        metrics.labelled(metrics.LOOKS, check.tier, "unchecked" if isinstance(outcome, Unchecked) else "seen").inc()
        self._processor.perform_all(self._core.take_outcome(check, outcome, steady_us()))

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(METRICS_S)
            if expired := self._core.expired:
                self._core.expired = 0
                metrics.SAFETY_EXPIRED.inc(expired)
                _log.warning("%d request(s) were never closed and were forgotten", expired)
            if dropped := self._core.take_dropped():
                metrics.SAFETY_EXPIRED.inc(dropped)
                _log.error("more than %d requests are open in a partition: %d will not be cleared", MAX_OPEN, dropped)
            metrics.SAFETY_OPEN.set(self._core.open)
            metrics.LOOKS_OPEN.set(self._core.pending_checks)

    def _checks_of(self, check: CheckRequest) -> Mapping[Tier, Check]:
        return self._checks[check.policy.version]

    async def _prepare(self, policy: Policy) -> None:
        check_deadlines(policy.classes, self._total_max_ms)
        if policy.version in self._checks:
            self._checks[policy.version] = self._checks.pop(policy.version)  # of all versions, closed last
        else:
            tiers: tuple[Tier, ...] = (1, 2) if policy.document.safety.classifiers else (1,)
            self._checks[policy.version] = await self._build_checks(policy, tiers)
            if len(self._checks) > MAX_VERSIONS:  # the first version is the one that was replaced longest ago
                await self._close_checks(next(iter(self._checks)))
        self._core.policy = policy

    async def _build_checks(self, policy: Policy, tiers: tuple[Tier, ...]) -> dict[Tier, Check]:
        checks: dict[Tier, Check] = {}
        try:
            for tier in tiers:
                checks[tier] = await self._factories[tier](policy)
        except BaseException:
            for check in checks.values():
                await check.close()
            raise
        return checks

    async def _close_checks(self, version: str) -> None:
        for check in self._checks.pop(version).values():
            await check.close()


def check_deadlines(classes: ServiceClasses, total_max_ms: int) -> None:
    """Raise ``BrokenPolicy`` if an interactive request may have a deadline above ``total_max_ms``."""
    longest_ms = classes.longest_total_ms("interactive")
    if longest_ms > total_max_ms:
        message = (
            f"total_ms may be {longest_ms} ms in an interactive class, but RAILBUS_TOTAL_MAX_MS={total_max_ms}:"
            " lower the first, or raise the second for router and safety alike"
        )
        raise BrokenPolicy([PolicyFault("policy.toml", 0, message)])


def _refused_recall() -> UnavailableError:
    return UnavailableError(
        "a recall could not be written, so safety ends, and checks the answer again when it starts: see the reason in"
        " the log; the role safety must be allowed to write to railbus.streams"
    )


def _count(write: Write) -> None:
    if isinstance(write.event, Recall):
        metrics.labelled(metrics.RECALLS, write.event.action, write.event.category).inc()
    else:
        metrics.CLEARED.inc()
