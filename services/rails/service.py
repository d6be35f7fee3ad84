"""The shell: reads requests, has each judged in a task of its own, writes one verdict each."""

import asyncio
import gc
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from schemas.requests import Request
from schemas.stream import Verdict
from schemas.topics import REQUESTS, REQUESTS_BATCH, STREAMS, Topic
from services.bus import BusError, BusSettings, GroupReader, Producer, Received, Room, TopicPartitions, Unread
from services.policy import Keeper, Policy
from services.policy.decisions import DecisionLog
from services.rails.cache import Cache
from services.rails.decide import Decided
from services.rails.jailbreak import Classifier
from services.rails.judge import Judge, judge_of
from services.rails.opa import OpaServer
from services.rails.settings import RailsSettings
from services.runtime import metrics
from services.runtime.clock import now_us
from services.runtime.logging import logger

GROUP: Final = "rails"
GROUP_BATCH: Final = "rails-batch"

MAX_VERSIONS: Final = 4
"""Policy versions whose engines are kept; a request needs its version for one deadline."""

MAX_JUDGED: Final = 100_000
"""Request ids that are remembered, so that a record that is read twice gets one verdict."""

DRAIN_S: Final = 2.0
"""How long verdicts under way may take when the process is told to stop; what is left over is read again."""

_log = logger("rails")


class Lane:
    """Requests of one topic, with room of its own: however long the batch is, nobody who waits does so behind it.

    Attributes:
        reader: Reads them.
        room: How many are judged at once.
        joined: Whether the group was joined.
    """

    def __init__(
        self,
        bus: BusSettings,
        topic: Topic,
        group: str,
        room: int,
        instance: str | None,
        handle: Callable[["Lane", Sequence[Received | Unread]], None],
    ) -> None:
        self.room = Room(room)
        self.joined = asyncio.Event()
        self.reader = GroupReader(
            bus,
            topics=[topic],
            group=group,
            handler=partial(handle, self),
            room=self.room,
            on_assigned=self._on_assigned,
            commit="manual",
            instance_id=instance,
        )

    def _on_assigned(self, _: TopicPartitions) -> None:
        self.joined.set()


class RailsService:
    """One rails process.

    Args:
        settings: How it runs.
        bus: Where the broker is.
    """

    def __init__(self, settings: RailsSettings, bus: BusSettings) -> None:
        self._keeper = Keeper(settings.policy, self._prepare)
        self._source = f"rails/{secrets.token_hex(3)}"
        self._classifier = Classifier(settings.rails_classifiers)
        self._opa = None if settings.opa_url is None else OpaServer(settings.opa_url)
        self._cache = None if settings.redis_url is None else Cache(settings.redis_url)
        self._decisions = None if settings.decision_log is None else DecisionLog(settings.decision_log, GROUP)
        self._judges: dict[str, Judge] = {}
        self._judged: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()  # bounded by the room
        self._producer = Producer(bus, role="rails")
        self._lanes = (
            Lane(bus, REQUESTS, GROUP, settings.rails_room, settings.rails_instance, self._handle),
            Lane(bus, REQUESTS_BATCH, GROUP_BATCH, settings.rails_classifiers, settings.rails_instance, self._handle),
        )

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._keeper.current

    async def run(self, ready: Callable[[], None]) -> None:
        """Works until cancelled; says ``ready`` once the group was joined.

        Raises:
            BrokenPolicy: NeMo does not take the policy it begins with.
        """
        await self._prepare(self._keeper.current)
        gc.collect()
        gc.freeze()  # what was loaded stays: to look through it again would stop everything for a tenth of a second
        if self._cache is not None:
            await self._cache.open()
        await self._producer.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in self._lanes:
                    tasks.create_task(lane.reader.run())
                tasks.create_task(self._keeper.watch())
                for lane in self._lanes:
                    await lane.joined.wait()
                ready()
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=DRAIN_S)
            await self._producer.stop()
            await self._close()

    def _handle(self, lane: Lane, records: Sequence[Received | Unread]) -> None:
        for record in records:
            event = record.event if isinstance(record, Received) else None
            if not isinstance(record, Received) or not isinstance(event, Request) or not self._wanted(event):
                lane.reader.done(record.topic, record.partition, record.offset)
                continue
            lane.room.take()
            judge = self._judges[self.policy.version]
            task = asyncio.get_running_loop().create_task(self._answer(lane, record, event, self.policy, judge))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            metrics.JUDGING.set(len(self._tasks))

    def _wanted(self, request: Request) -> bool:
        """Whether a verdict is to be given: once, and only while somebody can wait for it."""
        request_id = request.request_id
        over = now_us() > request.at + request.deadlines.total_ms * 1_000
        if request.attempt > 1 or over or request_id in self._judged:
            return False
        self._judged[request_id] = None
        if len(self._judged) > MAX_JUDGED:
            self._judged.popitem(last=False)
        return True

    async def _answer(self, lane: Lane, record: Received, request: Request, policy: Policy, judge: Judge) -> None:
        began = time.perf_counter()
        try:
            judged = await judge.judge(request)
            verdict = self._verdict(request, policy, judged.decided, (time.perf_counter() - began) * 1_000)
            await (await self._producer.post(STREAMS, verdict, traceparent=record.traceparent))
            lane.reader.done(record.topic, record.partition, record.offset)
            _count(verdict)
            await judge.remember(judged)
        except BusError as error:
            self._judged.pop(request.request_id, None)  # whoever reads the record again gives it one
            _log.error("request %s has no verdict: %s", request.request_id, error)
        except Exception as error:  # noqa: BLE001 - its text may hold a prompt; without a verdict nothing is shown
            _log.error("request %s has no verdict: %s", request.request_id, type(error).__name__)
            lane.reader.done(record.topic, record.partition, record.offset)
        finally:
            lane.room.give()
            metrics.JUDGING.set(len(self._tasks) - 1)

    def _verdict(self, request: Request, policy: Policy, decided: Decided, total_ms: float) -> Verdict:
        return Verdict(
            request_id=request.request_id,
            tenant=request.tenant,
            at=now_us(),
            source=self._source,
            decision=decided.decision,
            rails=decided.rails,
            policy_version=policy.version,
            refusal=decided.refusal,
            masked=decided.masked,
            delivery=decided.delivery,
            egress=decided.egress,
            total_ms=round(total_ms, 3),
        )

    async def _prepare(self, policy: Policy) -> None:
        """Build a policy's engine before it counts; the oldest of too many is closed."""
        if policy.version in self._judges:
            return
        if any(rail.name == "jailbreak" for rail in policy.document.rails.rail):
            missing = await self._classifier.prepare()
            if missing is not None:
                _log.error("the jailbreak rail breaks for every request: %s", missing)
        if self._decisions is not None:
            policy.listen(self._decisions)
        self._judges[policy.version] = await judge_of(policy, self._classifier, self._opa, self._cache)
        if len(self._judges) > MAX_VERSIONS:
            await self._judges.pop(next(iter(self._judges))).close()

    async def _close(self) -> None:
        self._classifier.close()
        for judge in self._judges.values():
            await judge.close()
        if self._opa is not None:
            await self._opa.close()
        if self._decisions is not None:
            self._decisions.close()
        if self._cache is not None:
            await self._cache.close()


def _count(verdict: Verdict) -> None:
    metrics.VERDICTS.labels(verdict.decision).inc()
    metrics.VERDICT_MS.observe(verdict.total_ms)
    for rail in verdict.rails:
        metrics.RAILS.labels(rail.rail, rail.result).inc()
        if rail.result != "cancelled":
            metrics.RAIL_MS.labels(rail.rail).observe(rail.ms)
