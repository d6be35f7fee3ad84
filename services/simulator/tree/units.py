"""Build the simulated processes of each service. The verdicts and the answers come from the ``Plan``."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from schemas.base import envelope
from schemas.requests import Message
from schemas.stream import Verdict
from schemas.topics import ACCOUNTS, REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, Topic
from services.policy import Admission, Policy, build
from services.policy.rulings import DeliveryFloor
from services.policy.source.files import read_files
from services.processor import Effect
from services.rails.core import EvaluateRequest, RailsCore
from services.router.config import FallbackLimits, RouterConfig
from services.router.core import READ_TOPICS, RouterCore
from services.runtime.classes.policy_deadlines import DEFAULT_POLICY
from services.runtime.classes.service_classes import ServiceClasses
from services.safety.core import SafetyCore
from services.safety.decide.check_types import CheckRequest, CheckResult
from services.simulator.judge.oracle import Oracle
from services.simulator.kafka.broker import PARTITIONS, SimulatedBroker
from services.simulator.kafka.groups import SimulatedGroup
from services.simulator.kafka.hosts import SimulatedProcess
from services.simulator.kafka.member import Reading, SimulatedMember
from services.simulator.plan import CLIENT_GRACE_MS, Plan, PlannedRequest
from services.simulator.simulation import MS
from services.simulator.tree.edge import EDGE_PARTS, Edge, EdgeParts
from services.simulator.tree.workers import Worker, WorkerCore, WorkerMember
from services.worker.scheduler import Scheduler

SAFETY_TOTAL_MAX_MS = 10_000
SAFETY_REWIND_MS = SAFETY_TOTAL_MAX_MS + 5_000
"""How far back safety reads the log when it gains a partition. It is computed as in ``services/safety/service.py``."""
RAILS_ROOM = 4
"""Number of requests that rails evaluate at the same time. It is small, so that some requests have to wait."""


@dataclass(frozen=True)
class WorldClasses:
    """The Python classes from which a ``World`` is built. Tests replace some of them by defective ones."""

    router: type[RouterCore] = RouterCore
    safety: type[SafetyCore] = SafetyCore
    rails: type[RailsCore] = RailsCore
    edge: EdgeParts = EDGE_PARTS
    router_member: type[SimulatedMember] = SimulatedMember
    safety_member: type[SimulatedMember] = SimulatedMember
    rails_member: type[SimulatedMember] = SimulatedMember
    worker_member: type[WorkerMember] = WorkerMember
    scheduler: type[Scheduler] = Scheduler


@cache
def policy(*, other: bool = False) -> Policy:
    """Return the default policy, but with total deadlines of at most ten seconds.

    With ``other``, one name in the blocklist differs from the default policy.
    """
    files = dict(read_files(DEFAULT_POLICY))
    text = files["policy.toml"].decode()
    text = text.replace("total_ms = [500, 120000]", "total_ms = [500, 10000]", 1)
    files["policy.toml"] = f"{text}\n[classes.batch]\nbounds = {{ total_ms = [500, 10000] }}\n".encode()
    if other:
        files = {name: data.replace(b"Bluefin Heron", b"Bluefin Otter") for name, data in files.items()}
    return build(files)


class Builder:
    def __init__(
        self,
        plan: Plan,
        parts: WorldClasses,
        broker: SimulatedBroker,
        groups: dict[str, SimulatedGroup],
        oracle: Oracle,
    ) -> None:
        self._plan = plan
        self._parts = parts
        self._broker = broker
        self._groups = groups
        self._oracle = oracle
        self._safeties: list[tuple[SimulatedProcess, SafetyCore]] = []
        self._policies_changed = 0
        self._runs: list[str] = []
        self._late_us = {fault.target: fault.for_us for fault in plan.faults if fault.kind == "verdict"}
        self._config = RouterConfig(
            input_gate="hold",
            output_check="on",
            client_grace_ms=CLIENT_GRACE_MS,
            total_max_ms=plan.total_max_ms,
            fallback=plan.fallback,
            max_retries=plan.max_retries,
            max_batch_retries=plan.max_retries,
            breaker_trip=plan.breaker_trip,
            limits=FallbackLimits(free=1_000),
        )
        self._builders: dict[str, Callable[[SimulatedProcess], SimulatedMember | Edge]] = {
            "edge": self._edge,
            "router": self._router,
            "safety": self._safety,
            "rails": self._rails,
            "generator": lambda process: self._worker(process, "generator"),
            "cloud": lambda process: self._worker(process, "cloud"),
        }

    def change_policy(self) -> None:
        self._policies_changed += 1
        for process, core in self._safeties:
            process.after(process.simulation.between(0, 500 * MS), self._reload, core)

    def _reload(self, core: SafetyCore) -> None:
        core.policy = self._policy()

    def _policy(self) -> Policy:
        return policy(other=bool(self._policies_changed % 2))

    def build(self, service: str, process: SimulatedProcess) -> SimulatedMember | Edge:
        return self._builders[service](process)

    def _edge(self, process: SimulatedProcess) -> Edge:
        return Edge(process, self._broker, self._groups["edge"], self._parts.edge, self._oracle)

    def _router(self, process: SimulatedProcess) -> SimulatedMember:
        core = self._parts.router(self._config, process.name, PARTITIONS)
        topics = [topic for topic in READ_TOPICS if topic.spread == "requests"]
        reading = Reading(topics, rewind_ms=self._config.window_us // 1_000, progress=ACCOUNTS)
        return self._parts.router_member(process, self._broker, self._groups["router"], core, reading)

    def _safety(self, process: SimulatedProcess) -> SimulatedMember:
        core = self._parts.safety(self._policy(), process.name, SAFETY_TOTAL_MAX_MS)
        self._safeties.append((process, core))

        def check(effect: Effect) -> None:
            if isinstance(effect, CheckRequest):
                process.after(process.simulation.between(1 * MS, 20 * MS), answer, effect)

        def answer(request: CheckRequest) -> None:
            member.perform_all(core.take_outcome(request, CheckResult(()), process.now_us))

        reading = Reading([STREAMS], rewind_ms=SAFETY_REWIND_MS, progress=ACCOUNTS)
        member = self._parts.safety_member(process, self._broker, self._groups["safety"], core, reading, check)
        return member

    def _rails(self, process: SimulatedProcess) -> SimulatedMember:
        member = self._rails_lane(process, REQUESTS, "rails")
        member.companion = self._rails_lane(process, REQUESTS_BATCH, "rails-batch")
        return member

    def _rails_lane(self, process: SimulatedProcess, topic: Topic, group: str) -> SimulatedMember:
        core = self._parts.rails(room=RAILS_ROOM, classes=_classes)

        def begin(effect: Effect) -> None:
            if isinstance(effect, EvaluateRequest):
                planned = self._planned(effect)
                process.after(self._late_us.get(planned.number, planned.verdict_us), end, effect)

        def end(effect: EvaluateRequest) -> None:
            member.perform_all(core.evaluated(effect, self._verdict(effect, process)))

        reading = Reading([topic], commit="manual")
        member = self._parts.rails_member(process, self._broker, self._groups[group], core, reading, begin)
        return member

    def _planned(self, effect: EvaluateRequest) -> PlannedRequest:
        return self._plan.requests[self._broker.labels[effect.request.request_id]]

    def _verdict(self, effect: EvaluateRequest, process: SimulatedProcess) -> Verdict:
        planned, request = self._planned(effect), effect.request
        delivery = request.delivery
        return Verdict(
            **envelope(request, at=process.host.now_us, source=process.name),
            decision=planned.decision,
            policy_version="scripted",
            refusal="declined" if planned.decision == "deny" else "",
            masked=(Message(role="user", content="masked"),) if planned.decision == "mask" else None,
            delivery=policy().tighten(delivery, _gated()) if planned.verdict_gated else None,
            egress=planned.verdict_egress,
        )

    def _worker(self, process: SimulatedProcess, group: str) -> SimulatedMember:
        slots = self._plan.slots
        core = WorkerCore(self._parts.scheduler(slots=slots, output_check="on", resolve=lambda model: model))
        on_begun = lambda ticket: self._oracle.on_begun(process.name, core.scheduler, ticket, slots)  # noqa: E731
        worker = Worker(process, self._broker, self._plan, core, self._runs, on_begun)
        topics = [REQUESTS, REQUESTS_BATCH] if group == "generator" else [REQUESTS_VERTEX]
        reading = Reading(topics, commit="manual")
        member = self._parts.worker_member(process, self._broker, self._groups[group], core, reading, worker.perform)
        member.worker, worker.producer, worker.done = worker, member.producer, member.done
        return member


def _classes() -> ServiceClasses:
    return policy().classes


@cache
def _gated() -> Admission:
    return Admission(allow=True, delivery=DeliveryFloor(mode="gated"), egress="allowed")
