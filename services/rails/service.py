"""The rails process: policy, rails and the processor of each lane wired together."""

import asyncio
import gc
import secrets
import time
from collections.abc import Callable
from typing import Final

from schemas.base import envelope
from schemas.requests import Request
from schemas.stream import Verdict
from schemas.topics import REQUESTS, REQUESTS_BATCH, Topic
from services.bus import BusSettings, Producer
from services.policy import Keeper, Policy
from services.policy.decisions import DecisionLog
from services.processor import Effect, Processor, Reading, Write
from services.rails.cache import Cache
from services.rails.core import Evaluate, Rails
from services.rails.decide import VerdictContent
from services.rails.evaluator import RailsEvaluator, build_evaluator
from services.rails.jailbreak import Classifier
from services.rails.opa import OpaServer
from services.rails.settings import RailsSettings
from services.runtime import metrics
from services.runtime.clock import now_us
from services.runtime.logging import logger

GROUP: Final = "rails"
GROUP_BATCH: Final = "rails-batch"

MAX_VERSIONS: Final = 4
"""Policy versions whose engines are kept; a request needs its version for one deadline."""

DRAIN_S: Final = 2.0
"""How long verdicts under way may take when the process is told to stop; what is left over is read again."""

_log = logger("rails")


class RailsService:
    """One rails process.

    Args:
        settings: How it runs.
        bus: Where the broker is.
        on_ready: Called once, when the groups of both lanes were joined.
    """

    def __init__(self, settings: RailsSettings, bus: BusSettings, on_ready: Callable[[], None]) -> None:
        self._bus = bus
        self._instance = settings.rails_instance
        self._keeper = Keeper(settings.policy, self._prepare)
        self._source = f"{GROUP}/{secrets.token_hex(3)}"
        self._classifier = Classifier(settings.rails_classifiers)
        self._opa = None if settings.opa_url is None else OpaServer(settings.opa_url)
        self._cache = None if settings.redis_url is None else Cache(settings.redis_url)
        self._decisions = None if settings.decision_log is None else DecisionLog(settings.decision_log, GROUP)
        self._evaluators: dict[str, RailsEvaluator] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # bounded by the lanes' limits
        self._on_ready = on_ready
        self._lanes = (  # each with room of its own: however long the batch is, nobody who waits does so behind it
            self._lane(GROUP, REQUESTS, settings.rails_room),
            self._lane(GROUP_BATCH, REQUESTS_BATCH, settings.rails_classifiers),
        )

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._keeper.current

    @property
    def ready(self) -> bool:
        """Whether requests of both lanes are judged."""
        return all(lane.ready for lane in self._lanes)

    async def run(self) -> None:
        """Work until cancelled.

        Raises:
            BrokenPolicy: NeMo does not take the policy it begins with.
        """
        await self._prepare(self.policy)
        gc.collect()
        gc.freeze()  # what was loaded stays: to look through it again would stop everything for a tenth of a second
        if self._cache is not None:
            await self._cache.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(lane.run())
                tasks.create_task(self._keeper.watch())
        finally:
            await self._close()

    def _lane(self, group: str, topic: Topic, limit: int) -> Processor:
        core = Rails()
        reading = Reading(group=group, topics=[topic], instance_id=self._instance, limit=limit, drain_s=DRAIN_S)

        def perform(effect: Effect) -> None:
            if isinstance(effect, Evaluate):
                task = asyncio.get_running_loop().create_task(self._evaluate(lane, core, effect))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                metrics.JUDGING.set(len(self._tasks))

        def unwritten(write: Write) -> None:
            if isinstance(write.event, Verdict):
                core.unwritten(write.event.request_id)

        lane = Processor(
            self._bus, reading, core, Producer(self._bus, role="rails", name=group), perform=perform, written=_count,
            unwritten=unwritten, on_ready=self._tell_ready,
        )  # fmt: skip
        return lane

    def _tell_ready(self) -> None:
        if self.ready:
            self._on_ready()

    async def _evaluate(self, lane: Processor, core: Rails, asked: Evaluate) -> None:
        request, policy = asked.request, self.policy
        evaluator, began = self._evaluators[policy.version], time.perf_counter()
        try:
            evaluated = await evaluator.evaluate(request)
        except Exception as error:  # noqa: BLE001 - its text may hold a prompt; without a verdict nothing is shown
            _log.error("request %s has no verdict: %s", request.request_id, type(error).__name__)
            lane.do(core.evaluated(asked, None))
            return
        verdict = self._verdict(request, policy, evaluated.content, (time.perf_counter() - began) * 1_000)
        lane.do(core.evaluated(asked, verdict))
        await evaluator.remember(evaluated)

    def _verdict(self, request: Request, policy: Policy, content: VerdictContent, total_ms: float) -> Verdict:
        return Verdict(
            **envelope(request, at=now_us(), source=self._source),
            decision=content.decision,
            rails=content.rails,
            policy_version=policy.version,
            refusal=content.refusal,
            masked=content.masked,
            delivery=content.delivery,
            egress=content.egress,
            total_ms=round(total_ms, 3),
        )

    async def _prepare(self, policy: Policy) -> None:
        """Build a policy's engine before it counts; the oldest of too many is closed."""
        if policy.version in self._evaluators:
            return
        if any(rail.name == "jailbreak" for rail in policy.document.rails.rail):
            missing = await self._classifier.prepare()
            if missing is not None:
                _log.error("the jailbreak rail breaks for every request: %s", missing)
        if self._decisions is not None:
            policy.listen(self._decisions)
        self._evaluators[policy.version] = await build_evaluator(policy, self._classifier, self._opa, self._cache)
        if len(self._evaluators) > MAX_VERSIONS:
            await self._evaluators.pop(next(iter(self._evaluators))).close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._classifier.close()
        for evaluator in self._evaluators.values():
            await evaluator.close()
        if self._opa is not None:
            await self._opa.close()
        if self._decisions is not None:
            self._decisions.close()
        if self._cache is not None:
            await self._cache.close()


def _count(write: Write) -> None:
    verdict = write.event
    if isinstance(verdict, Verdict):
        metrics.VERDICTS.labels(verdict.decision).inc()
        metrics.VERDICT_MS.observe(verdict.total_ms)
        for rail in verdict.rails:
            metrics.RAILS.labels(rail.rail, rail.result).inc()
            if rail.result != "cancelled":
                metrics.RAIL_MS.labels(rail.rail).observe(rail.ms)
