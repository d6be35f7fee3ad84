import asyncio
import gc
import secrets
import time
from collections.abc import Callable
from typing import Final

from schemas.base import envelope
from schemas.stream import Verdict
from schemas.topics import REQUESTS, REQUESTS_BATCH, Topic
from services.bus import BusSettings, Producer
from services.policy import Policy, PolicyReloader
from services.policy.engines.decision_log import DecisionLog
from services.processor import Effect, Processor, ProcessorConfig, Write
from services.rails.cache import RailCache
from services.rails.core import EvaluateRequest, RailsCore
from services.rails.decide import deny_unread
from services.rails.evaluator import JAILBREAK, Evaluation, RailsEvaluator, build_evaluator
from services.rails.jailbreak import JailbreakClassifier
from services.rails.opa import OpaClient
from services.rails.settings import Settings
from services.rails.turns import ActiveRequests
from services.runtime import metrics
from services.runtime.clock import steady_us
from services.runtime.logging import logger

GROUP: Final = "rails"
GROUP_BATCH: Final = "rails-batch"

MAX_VERSIONS: Final = 4
"""Maximum number of policy versions whose evaluators are kept. A request needs the evaluator of its version until its
rails have ended."""

DRAIN_S: Final = 2.0
"""Seconds for which evaluations may continue after the process is asked to stop. Requests without a verdict are read
again."""

READ_ROOMS: Final = 4
"""Maximum number of requests that are read and not done, as a multiple of the number evaluated concurrently. Requests
are read ahead, so that tenants can take turns."""

WAITING_ROOMS: Final = 2
"""Maximum number of waiting requests of one tenant, as a multiple of the number evaluated concurrently.

Further requests of this tenant are denied unread.
"""

BATCH_ROOMS: Final = 4
"""Batch requests evaluated concurrently for each process of the batch classifier, so that no process is idle."""

BATCH_NICE: Final = 19
"""Nice level of the batch requests' classifier, which gets only the CPU time that everything else leaves."""

BATCH_RETRIES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before each further evaluation of a batch request for which a rail broke or was late. So a fault that
passes does not deny the request."""

READY_S: Final = 0.05
"""Interval in seconds at which a starting process checks whether it is ready for both kinds of requests."""

_log = logger("rails")


class RailsService:
    """One rails process. It calls ``on_ready`` when it is ready for both interactive and batch requests."""

    def __init__(self, settings: Settings, bus: BusSettings, on_ready: Callable[[], None]) -> None:
        self._bus = bus
        self._instance = settings.rails_instance
        self._reloader = PolicyReloader(settings.policy, self._prepare)
        self._source = f"{GROUP}/{secrets.token_hex(3)}"
        self._active = ActiveRequests()
        self._classifier = JailbreakClassifier(settings.rails_classifiers, active=self._active)
        self._batch_classifier = JailbreakClassifier(
            settings.rails_batch_classifiers, first_nice=BATCH_NICE, nice=BATCH_NICE
        )
        self._batch_prepared: asyncio.Task[str | None] | None = None
        self._opa = None if settings.opa_url is None else OpaClient(settings.opa_url)
        self._cache = None if settings.redis_url is None else RailCache(settings.redis_url)
        self._decisions = None if settings.decision_log is None else DecisionLog(settings.decision_log, GROUP)
        self._evaluators: dict[str, RailsEvaluator] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # bounded by the lanes' limits
        self._on_ready = on_ready
        self._lanes = (  # each has its own limit, so batch requests never delay interactive ones
            self._lane(GROUP, REQUESTS, settings.rails_room, WAITING_ROOMS * settings.rails_room),
            self._lane(GROUP_BATCH, REQUESTS_BATCH, BATCH_ROOMS * settings.rails_batch_classifiers, None),
        )

    @property
    def policy(self) -> Policy:
        return self._reloader.current

    @property
    def ready(self) -> bool:
        return all(lane.ready for lane in self._lanes)

    async def run(self) -> None:
        """Evaluate requests until cancelled.

        Raises:
            BrokenPolicy: NeMo rejects the policy that is loaded at the start.
        """
        await self._prepare(self.policy)
        gc.collect()
        gc.freeze()  # loaded objects are never freed, and to collect them would take a tenth of a second
        if self._cache is not None:
            await self._cache.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(lane.run())
                tasks.create_task(self._reloader.watch())
                tasks.create_task(self._tell_ready())
        finally:
            await self._close()

    def _lane(self, group: str, topic: Topic, room: int, most_waiting: int | None) -> Processor:
        core = RailsCore(room, most_waiting, lambda: self.policy.classes)
        reading = ProcessorConfig(
            group=group, topics=[topic], instance_id=self._instance, limit=READ_ROOMS * room, drain_s=DRAIN_S
        )

        def perform(effect: Effect) -> None:
            if isinstance(effect, EvaluateRequest):
                task = asyncio.get_running_loop().create_task(self._evaluate(lane, core, effect))
                self._tasks.add(task)
                task.add_done_callback(self._forget)
                metrics.JUDGING.set(len(self._tasks))

        def on_not_written(write: Write) -> None:
            if isinstance(write.event, Verdict) and write.done is not None:
                core.unwritten(write.done, write.event.request_id)

        lane = Processor(
            self._bus, reading, core, Producer(self._bus, role="rails", name=group), perform=perform, on_written=_count,
            on_not_written=on_not_written,
        )  # fmt: skip
        return lane

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        metrics.JUDGING.set(len(self._tasks))

    async def _tell_ready(self) -> None:
        # A lane can become unready again before the other one is ready. So its `on_ready`, which is called once, is not
        # used.
        while not self.ready:  # noqa: ASYNC110 - at the start only
            await asyncio.sleep(READY_S)
        self._on_ready()

    async def _evaluate(self, lane: Processor, core: RailsCore, effect: EvaluateRequest) -> None:
        request, policy = effect.request, self.policy
        evaluator, began = self._evaluators[policy.version], time.perf_counter()
        try:
            if effect.crowded:
                evaluation = Evaluation(deny_unread(policy, request), "", None)
            else:
                evaluation = await self._evaluation(evaluator, effect)
        except Exception as error:  # noqa: BLE001 - its text may contain a prompt; without a verdict nothing is shown
            _log.error("request %s has no verdict: %s", request.request_id, type(error).__name__)
            lane.perform_all(core.evaluated(effect, None))
            return
        verdict = Verdict(
            **envelope(request, at=steady_us(), source=self._source),
            **evaluation.content._asdict(),
            policy_version=policy.version,
            total_ms=round((time.perf_counter() - began) * 1_000, 3),
        )
        lane.perform_all(core.evaluated(effect, verdict))
        await evaluator.remember(evaluation)

    async def _evaluation(self, evaluator: RailsEvaluator, effect: EvaluateRequest) -> Evaluation:
        if effect.place.topic != REQUESTS_BATCH.name:
            return await evaluator.evaluate(effect.request)
        if evaluator.has_classifier:
            if self._batch_prepared is None:
                self._batch_prepared = asyncio.create_task(self._batch_classifier.prepare())
            await asyncio.shield(self._batch_prepared)
        evaluation = await evaluator.evaluate(effect.request, batch=True)
        for wait_s in BATCH_RETRIES_S:
            if not evaluation.unanswered:
                break
            await asyncio.sleep(wait_s)
            evaluation = await evaluator.evaluate(effect.request, batch=True)
        return evaluation

    async def _prepare(self, policy: Policy) -> None:
        if policy.version in self._evaluators:
            self._evaluators[policy.version] = self._evaluators.pop(policy.version)  # of all versions, closed last
            return
        if any(rail.name == JAILBREAK for rail in policy.document.rails.rail):
            missing = await self._classifier.prepare()
            if missing is not None:
                _log.error("the jailbreak rail fails for every request: %s", missing)
        if self._decisions is not None:
            policy.listen(self._decisions)
        self._evaluators[policy.version] = await build_evaluator(
            policy, self._classifier, self._opa, self._cache, self._batch_classifier, self._active
        )
        if len(self._evaluators) > MAX_VERSIONS:
            await self._evaluators.pop(next(iter(self._evaluators))).close()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._classifier.close()
        self._batch_classifier.close()
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
        metrics.labelled(metrics.VERDICTS, verdict.decision).inc()
        metrics.VERDICT_MS.observe(verdict.total_ms)
        for rail in verdict.rails:
            metrics.labelled(metrics.RAIL_OUTCOMES, rail.rail, rail.result).inc()
            if rail.result != "cancelled":
                metrics.labelled(metrics.RAIL_MS, rail.rail).observe(rail.ms)
