"""Run one plan: start services and clients, inject the faults, and check the properties that must hold."""

from dataclasses import dataclass

from schemas.requests import Request, received_us
from schemas.side_events import Account
from schemas.stream import StreamEvent
from schemas.topics import REQUESTS_VERTEX
from services.bus import Received
from services.simulator.judge.ending import Ending, check_empty, check_justified, check_live, has_open, is_running
from services.simulator.judge.oracle import FOR_EVER_US, Oracle, Violation
from services.simulator.kafka.broker import FETCH_WAIT_US, PARTITIONS, WAY_US, SimulatedBroker
from services.simulator.kafka.groups import SimulatedGroup
from services.simulator.kafka.hosts import Host, SimulatedProcess
from services.simulator.kafka.member import SimulatedMember
from services.simulator.plan import FAULTS_END_US, SERVICES, Fault, Plan
from services.simulator.simulation import MS, SECOND, T0_US, Simulation
from services.simulator.tree.clients import Client, Clients
from services.simulator.tree.edge import Edge
from services.simulator.tree.units import Builder, WorldClasses

LIVENESS_US = 30 * SECOND
"""Time after the last fault within which every request is closed, has an account, and is checked.

In the longest case, these times add up: the session timeout (1.5 s), reading the log again, the total deadline (6 s),
the router's wait before it writes a lost decision again (5 s for each), and its wait for the usage of a cancelled run
before it writes the account (1 s). The sizes of clock steps are added to this constant.
"""

CLOCKS_US = 5 * MS
"""Maximum time by which a reader's estimate of an append time is too early, if the broker's clocks are not stepped.
Steps of a host's clock do not change this maximum. Timestamps have a resolution of a millisecond, and two clocks with a
drift of 100 ppm each differ by 4 ms after 20 s."""

RETENTION_US = 90 * SECOND
"""Additional time for which a run goes on at its end if a core still has requests. In this time, safety drops the state
of requests that were never closed. It is longer than the sum of the total deadline of ten seconds and safety's grace
period of a minute."""


LONGEST_RUN_US = 12 * SECOND
"""Additional time for which a run goes on at its end if an execution or evaluation has not ended. In this time, each of
them ends, because no total deadline is longer than ten seconds."""

STALL_CHECK_US = 500 * MS

REREADING = frozenset({"kill", "pause", "restart", "join", "leave", "cut"})
"""Kinds of fault after which a member may read a partition again."""


@dataclass
class Instance:
    service: str
    process: SimulatedProcess
    member: SimulatedMember | Edge
    gone: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of one simulation.

    Attributes:
        healthy: Number of requests that had only one attempt and were closed with the cause ``answered`` or
            ``recalled``.
        digest: Hash of all that happened.
    """

    seed: int
    requests: int
    healthy: int
    faults: int
    events: int
    records: int
    rebalances: int
    digest: str
    violation: Violation | None
    lines: list[tuple[int, str, str]] | None


class World:
    def __init__(self, plan: Plan, parts: WorldClasses | None = None, *, trace: bool = False) -> None:
        self._plan = plan
        self._parts = parts or WorldClasses()
        self.simulation = Simulation(plan.seed, trace=trace)
        self.broker = SimulatedBroker(self.simulation, plan.node_skews_us)
        self._groups = {service: SimulatedGroup(self.simulation, service) for service in (*SERVICES, "rails-batch")}
        self._hosts = [Host(self.simulation, skew_us, ppm) for skew_us, ppm in plan.skews]
        self._instances: list[Instance] = []
        self._names = 0
        self._asked: dict[str, tuple[int, int, Request]] = {}  # partition, time of receipt, request
        self._accounts: dict[str, list[Account]] = {}
        self._live: dict[str, tuple[int, int, bool]] = {}
        self.oracle = Oracle(self.broker)
        self._builder = Builder(plan, self._parts, self.broker, self._groups, self.oracle)
        self._clients = Clients(plan.seed, self.simulation, self.oracle, self._edges)
        self._groups["rails"].on_commit = self._on_commit
        for workers in ("generator", "cloud"):
            self._groups[workers].on_commit = self.oracle.on_taken
        self.broker.on_appended.append(self._on_appended)

    def run(self) -> Result:
        violation: Violation | None = None
        healthy = 0
        try:
            self._begin()
            self.simulation.run_until(T0_US + FAULTS_END_US)
            self._undo_all()
            self._run_on(LIVENESS_US + self.broker.stepped_us)
            healthy = self._judge()
        except Violation as found:
            violation = found
            self.simulation.note("oracle", f"VIOLATION {found}")
        return Result(
            self._plan.seed, len(self._plan.requests), healthy, len(self._plan.faults), self.simulation.events,
            sum(map(len, self.broker.logs.values())), sum(group.rebalances for group in self._groups.values()),
            self.simulation.digest, violation, self.simulation.lines,
        )  # fmt: skip

    def take_apart(self) -> None:
        """Clear all objects after the run, so that no reference cycles remain. Do not use the world afterwards."""
        members = [each.member for each in self._instances]
        parts: list[object] = [self.oracle, self.broker, self._builder, self._clients, *self._clients.all, *members]
        for member in members:
            if isinstance(member, Edge):
                parts += [stream for streams in member.streams.values() for stream in streams]
            else:
                parts += [each for each in (member.companion, getattr(member, "worker", None)) if each is not None]
        for instance in self._instances:
            instance.process.on_reachable.clear()
            instance.process.on_unreachable.clear()
        self.simulation.heap.clear()
        for part in (*parts, *self._groups.values(), self):
            vars(part).clear()

    def _begin(self) -> None:
        after = self.simulation.after
        for service in SERVICES:
            for _ in range(self._plan.members[service]):
                self._start(service)
        for planned in self._plan.requests:
            client = Client(planned)
            self._clients.all.append(client)
            after(planned.at_us, self._clients.ask, client)
        after(STALL_CHECK_US, self._check_stalls)
        for fault in self._plan.faults:
            if fault.service:
                after(fault.at_us, self._inject, fault)
            elif fault.kind == "gone":
                at_us = fault.at_us + self._plan.requests[fault.target].waited_us + 20 * MS
                after(at_us, self._clients.leave, self._clients.all[fault.target], fault.for_us)
            elif fault.kind == "roam":
                after(fault.at_us, self._clients.roam, self._clients.all[fault.target], fault.for_us, fault.amount_us)
            elif fault.kind == "lazy":
                after(fault.at_us, self._clients.slow_down, self._clients.all[fault.target], fault.for_us)

    def _start(self, service: str, host: Host | None = None) -> None:
        self._names += 1
        host = host or self._hosts[1 + self._names % (len(self._hosts) - 1)]
        process = SimulatedProcess(self.simulation, f"{service}-{self._names}", host)
        member = self._builder.build(service, process)
        self._instances.append(Instance(service, process, member))
        process.note("starts")
        member.start()

    def _edges(self) -> list[Edge]:
        return [
            each.member
            for each in self._instances
            if not each.gone and isinstance(each.member, Edge) and not each.process.cut
        ]

    def _check_stalls(self) -> None:
        for client in self._clients.all:
            if client.stream is not None and not client.done:
                self.oracle.check_stall(client.stream, self.simulation.now_us)
        if not all(client.done for client in self._clients.all):
            self.simulation.after(STALL_CHECK_US, self._check_stalls)

    # Faults

    def _inject(self, fault: Fault) -> None:
        here = [each for each in self._instances if each.service == fault.service and not each.gone]
        if fault.service == "broker":
            self._strike_broker(fault)
        elif fault.kind == "policy":
            self.simulation.note("policy", "FAULT another policy is in force")
            self._builder.change_policy()
        elif fault.kind == "upgrade":
            self.simulation.note("safety", "FAULT it is of the next version")
            self.broker.upgraded = True
        elif fault.kind == "join":
            self._start(fault.service)
        elif here:
            self._strike(here[fault.target % len(here)], fault)

    def _strike(self, instance: Instance, fault: Fault) -> None:
        process, after = instance.process, self.simulation.after
        for_us = min(fault.for_us, FAULTS_END_US - fault.at_us)
        process.note(f"FAULT {fault.kind} for {for_us // MS} ms")
        match fault.kind:
            case "kill":
                self._kill(instance, loses_requests=fault.for_us % 2 == 0)
                after(for_us, self._start_again, instance)
            case "restart":
                self._kill(instance, loses_requests=False)
                after(10 * MS, self._start_again, instance)
            case "leave":
                instance.gone = True
                instance.member.stop(lambda: self._kill(instance, loses_requests=False))
                after(for_us, self._start_again, instance)
            case "pause" if not process.paused:
                process.pause()
                after(for_us, self._resume, process)
            case "cut" if not process.cut:
                process.cut_off()
                after(for_us, self._heal, process)
            case "clock":
                process.host.step(fault.amount_us)
            case "reopen":
                instance.member.producer.reopen()
            case "slow":
                process.slow = 60
                after(for_us, process.speed_up)

    def _strike_broker(self, fault: Fault) -> None:
        for_us = min(fault.for_us, FAULTS_END_US - fault.at_us)
        if fault.kind == "time":
            self.simulation.note("broker", f"FAULT its clock is set by {fault.amount_us // MS} ms")
            self.broker.step(fault.amount_us)
        elif fault.kind == "newer":
            self.broker.append_newer(fault.target)
        elif fault.kind == "leader":
            number = fault.target % PARTITIONS
            self.simulation.note("broker", f"FAULT partitions {number} are led by other nodes")
            self.broker.move_leaders(number)
        elif fault.kind == "stray":
            self.broker.append_stray(fault.target)
        elif not self.simulation.away:
            self.simulation.note("broker", f"FAULT away for {for_us // MS} ms")
            self.simulation.away, self.oracle.disturbed_us = True, FOR_EVER_US
            self.simulation.after(for_us, self._return_broker, fault.for_us % 2 == 0)

    def _return_broker(self, lost_acknowledgements: bool) -> None:
        if not self.simulation.away:
            return
        self.simulation.note("broker", "is back")
        self.oracle.disturbed_us = self.simulation.now_us
        self.simulation.bring_broker_back()
        for instance in self._instances:
            if lost_acknowledgements and not instance.gone and instance.process.alive:
                instance.member.producer.reopen()

    def _kill(self, instance: Instance, *, loses_requests: bool) -> None:
        instance.gone = True
        if instance.process.alive:
            instance.process.note("ends")
            instance.process.kill(loses_requests=loses_requests)
            if isinstance(instance.member, Edge):
                self._clients.on_edge_died(instance.member)

    def _start_again(self, instance: Instance) -> None:
        self._start(instance.service, instance.process.host)

    def _resume(self, process: SimulatedProcess) -> None:
        if process.alive and process.paused:
            process.note("resumes")
            process.resume()

    def _heal(self, process: SimulatedProcess) -> None:
        if process.alive and process.cut:
            process.note("is connected again")
            process.heal()

    def _undo_all(self) -> None:
        self.simulation.note("faults", "end")
        self._return_broker(lost_acknowledgements=False)
        for instance in self._instances:
            self._resume(instance.process)
            self._heal(instance.process)
            instance.process.speed_up()
        if self.broker.upgraded:
            self._upgrade_edges()

    def _upgrade_edges(self) -> None:
        for instance in tuple(self._instances):
            if isinstance(instance.member, Edge) and instance.member.old and not instance.gone:
                self._kill(instance, loses_requests=False)
                self._start_again(instance)

    # The end

    @property
    def _margin_us(self) -> int:
        # A reader's estimate of an append time may be too early by this time. After a step of the broker's clock, the
        # reader knows only that the record is newer than the last fetch but one. While the broker is away, no fetch
        # reaches it. If records from before the step are read again, the estimate is too early by the whole step.
        if not self.broker.stepped_us:
            return CLOCKS_US
        away_us = sum(fault.for_us for fault in self._plan.faults if fault.kind == "outage")
        unknown_us = self.broker.stepped_us
        if REREADING.isdisjoint(fault.kind for fault in self._plan.faults):
            unknown_us = min(unknown_us, 2 * FETCH_WAIT_US + WAY_US + away_us)
        return CLOCKS_US + unknown_us

    def _run_on(self, for_us: int) -> None:
        end_us = self.simulation.now_us + for_us
        while self.simulation.now_us < end_us:
            self.simulation.run_until(self.simulation.now_us + SECOND // 2)
            if self._all_over and not self._any_open() and self._nothing_owed():
                break
        self.simulation.run_until(self.simulation.now_us + SECOND)

    def _judge(self) -> int:
        found = self._endings()
        for client in self._clients.all:
            name = f"request {client.planned.number}"
            if client.request is None and not client.gone:
                raise Violation("every question is taken", f"{name} was asked {client.tries} times")
            if not client.done:
                at = client.seen[-1].op_id
                raise Violation("every stream ends", f"the client of {name} is at {at}")
        for each in found:
            self._check_live(each)
        self.oracle.check_rejected()
        breaker = bool(self._plan.breaker_trip)
        served = [
            check_justified(each, self._margin_us, breaker=breaker, max_retries=self._plan.max_retries)
            for each in found
        ]
        if self._any_open():
            self.simulation.run_until(self.simulation.now_us + RETENTION_US + self.broker.stepped_us)
        elif any(is_running(core) for each in self._instances if not each.gone for core in each.member.cores):
            self.simulation.run_until(self.simulation.now_us + LONGEST_RUN_US)
        for instance in self._instances:
            for core in () if instance.gone else instance.member.cores:
                check_empty(core, instance.process.name)
        return sum(served)

    def _any_open(self) -> bool:
        return any(has_open(core) for each in self._instances if not each.gone for core in each.member.cores)

    @property
    def _all_over(self) -> bool:
        return len(self._accounts) == len(self._asked) and all(each.done for each in self._clients.all)

    def _nothing_owed(self) -> bool:
        try:
            for each in self._endings():
                self._check_live(each)
        except Violation:
            return False  # this may still become true
        return True

    def _check_live(self, ending: Ending) -> None:
        # Skip the check if nothing was appended about the request since the last successful check.
        known = len(ending.replay.steps), len(ending.accounts), ending.showed
        if self._live.get(ending.request.request_id) != known:
            check_live(ending)
            self._live[ending.request.request_id] = known

    def _endings(self) -> list[Ending]:
        labels, accounts, oracle = self.broker.labels, self._accounts, self.oracle
        return [
            Ending(
                labels[each], *asked, oracle.replay(each), each in oracle.showed, accounts.get(each, []),
                oracle.away_us(each),
            )
            for each, asked in self._asked.items()
        ]  # fmt: skip

    def _on_appended(self, record: Received) -> None:
        event = record.event
        if isinstance(event, StreamEvent):
            return
        if isinstance(event, Request):
            if record.topic != REQUESTS_VERTEX.name and event.request_id not in self._asked:
                self._asked[event.request_id] = (record.partition, received_us(event, self.simulation.now_us), event)
        elif isinstance(event, Account):
            self._accounts.setdefault(event.request_id, []).append(event)

    def _on_commit(self, group: str, partition: tuple[str, int], position: int) -> None:
        margin_us = self._margin_us
        self.oracle.on_commit(group, position, partition[1], self.simulation.now_us, margin_us)
