"""Draw the plan of a simulation from its seed: requests, answers of the workers, and faults.

Each plan has only some kinds of fault, so that frequent kinds do not hide the effects of rare ones (swarm testing).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from msgspec import structs

from schemas.requests import Deadlines, Delivery, Egress, Fallback
from schemas.stream import VerdictDecision
from services.simulator.simulation import MS, SECOND

FALLBACKS: Final[tuple[Literal["off", "vertex"], ...]] = ("vertex", "vertex", "off")

ASKING_BEGINS_US = 400 * MS
FAULTS_END_US = 8 * SECOND
"""Every fault starts before this time, and ends at this time at the latest. Microseconds since the start of the run."""

TOTAL_MAX_MS = 6_000
SHORT_TOTAL_MAX_MS = 2_000
BACKLOG = 4
"""Number of long batch requests in a run with a backlog. All other requests of such a run are interactive and short."""

CLIENT_GRACE_MS = 1_500
"""The value of ``RouterConfig.client_grace_ms``."""

PROCESS_FAULTS = ("kill", "pause", "restart", "join", "leave", "cut", "clock", "reopen", "slow")
BROKER_FAULTS = ("time", "outage", "newer", "stray", "leader")
"""Faults of the broker. ``time``: its clocks are changed. ``outage``: it is unreachable for a while. ``newer``: a
request in a format that is too new for the services is appended. ``stray``: a verdict on a request that no topic has is
appended. ``leader``: other nodes, each with its own clock, become the leaders of some partitions."""

UPGRADE_FAULTS = ("upgrade",)
"""From this fault on, safety runs the next version. Edges that were started before this fault cannot read
the recalls of that version. These edges are replaced when all faults have ended."""

POLICY_FAULTS = ("policy",)
"""From this fault on, another policy is in force. Each process of safety loads it at a different time."""


MEETING = frozenset({"kill", "pause", "restart", "join", "leave", "cut", "slow"})
"""Kinds of fault of processes that may be planned close to another fault; see ``_met``."""

SAFETY_FAULTS = frozenset({*POLICY_FAULTS, *UPGRADE_FAULTS})

REQUEST_FAULTS = ("verdict", "silence", "failure", "late", "stall", "gone", "lazy", "roam")
FAULT_KINDS = (*PROCESS_FAULTS, *REQUEST_FAULTS, *BROKER_FAULTS, *POLICY_FAULTS, *UPGRADE_FAULTS)

SERVICES = ("router", "safety", "rails", "edge", "generator", "cloud")

EMAIL = ("~ write to jane.", "doe@exam", "ple.org or ")
CODE_NAME = ("~ read Project Blue", "fin Heron now ")


class Fault(NamedTuple):
    """A planned fault.

    Attributes:
        at_us: Start of the fault, in microseconds since the start of the simulation.
        service: The affected service, or ``broker``; empty for a fault of a request.
        target: Number that selects the affected request, process or partitions.
        amount_us: For the kind ``clock``, how far a host's clock is moved. For ``time``, how far the broker's clock is
            moved. For ``roam`` (the client disconnects and resumes), the duration of each read of the client after it
            has resumed; 0 does not change this duration. For every other kind, 0.
    """

    kind: str
    at_us: int
    service: str
    target: int
    for_us: int
    amount_us: int = 0

    def __str__(self) -> str:
        whom = f"{self.service}[{self.target}]" if self.service else f"request {self.target}"
        more = f" by {self.amount_us / MS:+.0f} ms" if self.amount_us else ""
        return f"{self.at_us / SECOND:6.3f} s  {self.kind} {whom}{more}, for {self.for_us / MS:.0f} ms"


@dataclass(frozen=True, slots=True)
class PlannedAnswer:
    """The answer of a worker: its first chunk after ``first_us``, then one chunk every ``gap_us``.

    Attributes:
        pieces: The texts of the chunks. The worker replaces each ``~`` by a number that is different in each run.
        ungoverned: Whether the worker's ``Started`` says that the answer needs neither a verdict nor an output check.
    """

    pieces: tuple[str, ...]
    first_us: int
    gap_us: int
    ungoverned: bool = False


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    number: int
    at_us: int
    waited_us: int  # how long the edge waits before it writes the request to the log
    delivery: Delivery
    deadlines: Deadlines
    fallback: Fallback
    egress: Egress
    decision: VerdictDecision
    verdict_us: int
    verdict_gated: bool
    verdict_egress: Egress
    answer: PlannedAnswer
    second_answer: PlannedAnswer
    batch: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a simulation.

    Attributes:
        members: The number of processes of each service at the start.
        skews: The clock offset (microseconds) and clock drift (parts per million) of each host.
        node_skews_us: How far the clock of each broker node is ahead of the simulation's clock.
    """

    seed: int
    requests: tuple[PlannedRequest, ...]
    faults: tuple[Fault, ...]
    members: dict[str, int]
    skews: tuple[tuple[int, int], ...]
    breaker_trip: int
    fallback: Literal["off", "vertex"]
    max_retries: int
    slots: int
    node_skews_us: tuple[int, ...]
    total_max_ms: int

    def without(self, index: int) -> "Plan":
        faults = self.faults[:index] + self.faults[index + 1 :]
        return replace(self, faults=faults)


def draw(seed: int, kinds: tuple[str, ...] = FAULT_KINDS) -> Plan:
    dice = random.Random(f"plan/{seed}")  # noqa: S311 - a schedule is no secret
    span_ms = dice.choice((6_000, 6_000, 3_000))
    requests = tuple(_request(dice, number, span_ms) for number in range(dice.randrange(20, 23)))
    total_max_ms = TOTAL_MAX_MS
    if dice.random() < 0.2:
        total_max_ms = SHORT_TOTAL_MAX_MS
        requests = tuple(_with_backlog(dice, each) for each in requests)
    members = {service: dice.randrange(1, 4) for service in SERVICES}
    members["router"] = max(members["router"], dice.randrange(1, 3))
    skewed = "clock" in kinds and dice.random() < 0.5
    skews = tuple((_skew_us(dice), dice.randrange(-100, 100)) if skewed else (0, 0) for _ in range(8))
    faults = tuple(sorted(_faults(dice, kinds, requests), key=lambda fault: fault.at_us))
    breaker_trip = dice.choice((0, 0, 0, 5))
    fallback: Literal["off", "vertex"] = dice.choice(FALLBACKS)
    max_retries = dice.choice((0, 1, 2, 2))
    slots = dice.choice((2, 8, 8, 8))
    return Plan(
        seed, requests, faults, members, skews, breaker_trip, fallback, max_retries, slots,
        _node_skews_us(dice, kinds), total_max_ms,
    )  # fmt: skip


def _skew_us(dice: random.Random) -> int:
    return dice.choice((-1, 1)) * 3_600 * SECOND if dice.random() < 0.15 else dice.randrange(-2_000, 2_000) * MS


def _request(dice: random.Random, number: int, span_ms: int) -> PlannedRequest:
    return PlannedRequest(
        number=number,
        at_us=ASKING_BEGINS_US + dice.randrange(0, span_ms) * MS,
        waited_us=dice.choice((0, 0, 5 * MS, 100 * MS)),
        delivery=Delivery(
            mode=dice.choice(("optimistic", "optimistic", "gated", "windowed")),
            hold_tokens=dice.choice((0, 3)),
            max_exposure_tokens=dice.choice((3, 64)),
        ),
        deadlines=Deadlines(
            verdict_ms=dice.choice((800, 1_500)), ttft_ms=dice.choice((300, 600)), stall_ms=dice.choice((300, 800)),
            total_ms=dice.choice((3_000, 6_000)),
        ),
        fallback=dice.choice(("cancel", "cancel", "race", "off")),
        egress=dice.choice(("allowed", "allowed", "allowed", "forbidden")),
        decision=dice.choice(("allow",) * 8 + ("deny", "mask")),
        verdict_us=dice.randrange(5, 120) * MS,
        verdict_gated=dice.random() < 0.1,
        verdict_egress=dice.choice(("allowed",) * 9 + ("forbidden",)),
        answer=_answer(dice, number, "self-hosted"),
        second_answer=_answer(dice, number, "cloud"),
        batch=dice.random() < 0.1,
    )  # fmt: skip


def _node_skews_us(dice: random.Random, kinds: tuple[str, ...]) -> tuple[int, ...]:
    several = "leader" in kinds or "clock" in kinds
    apart = several and dice.random() < (0.3 if len(kinds) == len(FAULT_KINDS) else 0.9)
    return tuple(dice.randrange(-150, 150) * MS if apart else 0 for _ in range(3))


def _with_backlog(dice: random.Random, request: PlannedRequest) -> PlannedRequest:
    if request.number < BACKLOG:
        # These answers take longer than ``RouterConfig.window_us``, which is how far back a router reads the log.
        pieces = tuple(f"~ backlog {request.number}.{index} " for index in range(12))
        return replace(
            request, at_us=ASKING_BEGINS_US + dice.randrange(0, 600) * MS, batch=True, decision="allow",
            deadlines=structs.replace(request.deadlines, total_ms=10_000),
            answer=PlannedAnswer(pieces, 50 * MS, 650 * MS),
        )  # fmt: skip
    total_ms = SHORT_TOTAL_MAX_MS
    return replace(request, deadlines=structs.replace(request.deadlines, total_ms=total_ms), batch=False)


def _answer(dice: random.Random, number: int, who: str) -> PlannedAnswer:
    pieces = [f"~ {who} {number}.{index} " for index in range(dice.choice((1, 2, 2, 3, 3, 9)))]
    luck = dice.random()
    secret = EMAIL if luck < 0.25 else CODE_NAME if luck < 0.35 else ()
    at = dice.randrange(0, len(pieces))
    gap_ms = dice.randrange(220, 270) if len(pieces) > 3 else dice.randrange(5, 60)  # many chunks come slowly
    return PlannedAnswer(
        (*pieces[:at], *secret, *pieces[at:]), dice.randrange(10, 120) * MS, gap_ms * MS, dice.random() < 0.15
    )


def _faults(dice: random.Random, kinds: tuple[str, ...], requests: tuple[PlannedRequest, ...]) -> list[Fault]:
    width = dice.choice((2, 3, 5, 8, len(kinds)))
    present = dice.sample(kinds, min(width, len(kinds)))
    services = (dice.choice(SERVICES[:4]),) if dice.random() < 0.5 else SERVICES
    faults = [_fault(dice, dice.choice(present), services, requests) for _ in range(dice.randrange(5, 15))]
    if "roam" in present or (len(kinds) == len(FAULT_KINDS) and dice.random() < 0.3):
        long = [each for each in requests if len(each.answer.pieces) > 3] or requests
        faults += [_roam(dice, dice.choice(dice.choice((long, requests)))) for _ in range(dice.randrange(3, 12))]
    meeting = [kind for kind in present if kind in MEETING]
    return [*faults, *_met(dice, meeting, services, faults)] if meeting and dice.random() < 0.5 else faults


def _roam(dice: random.Random, request: PlannedRequest) -> Fault:
    answer = request.answer
    lasts_us = answer.first_us + request.verdict_us + answer.gap_us * len(answer.pieces)
    at_us = request.at_us + request.waited_us + dice.randrange(0, lasts_us + 200 * MS)
    return Fault(
        "roam", at_us, "", request.number, dice.choice((5, 30, 150, 400)) * MS, dice.choice((0, 0, 60, 350)) * MS
    )


def _met(dice: random.Random, kinds: list[str], services: tuple[str, ...], faults: list[Fault]) -> Iterator[Fault]:
    for fault in faults:
        if fault.kind == "roam" and dice.random() < 0.3:  # the text that the client has seen is unchecked
            at_us = max(0, fault.at_us - dice.randrange(0, 300) * MS)
            yield Fault(dice.choice(kinds), at_us, "safety", dice.randrange(0, 6), dice.choice((400, 1_500)) * MS)
        if fault.kind == "roam" and dice.random() < 0.3:  # then the edge reports late that the client has left
            at_us = max(0, fault.at_us - dice.randrange(0, 100) * MS)
            yield Fault(dice.choice(kinds), at_us, "edge", dice.randrange(0, 6), dice.choice((400, 800)) * MS)
        if fault.service in SERVICES and dice.random() < 0.3:  # at this time, the group may still be rebalancing
            at_us = max(0, fault.at_us + dice.randrange(-500, 500) * MS)
            for_us = dice.choice((400, 1_500, 3_000)) * MS
            yield Fault(dice.choice(kinds), at_us, fault.service, dice.randrange(0, 6), for_us)
        # Another fault near the end of this fault, where mostly a deadline is; see ``_request_fault``.
        if not fault.service and fault.kind in {"gone", "late", "stall", "verdict"} and dice.random() < 0.5:
            at_us = fault.at_us + fault.for_us + dice.randrange(-300, 50) * MS
            for_us = dice.choice((100, 400, 1_500)) * MS
            service = dice.choice(("router", dice.choice(services)))
            kind = dice.choice(kinds)
            if kind == "slow":
                for_us += SECOND
            if 0 < at_us < FAULTS_END_US - SECOND:
                yield Fault(kind, at_us, service, dice.randrange(0, 6), for_us)


def _fault(dice: random.Random, kind: str, services: tuple[str, ...], requests: tuple[PlannedRequest, ...]) -> Fault:
    at_us = dice.randrange(100, 7_000) * MS
    for_us = dice.choice((50, 300, 1_500, 3_000)) * MS + dice.randrange(0, 500) * MS
    amount_us = 0
    if kind in REQUEST_FAULTS:
        long = [each for each in requests if len(each.answer.pieces) > 3]
        return _request_fault(dice, kind, dice.choice(long if kind == "gone" and long else requests), for_us)
    if kind in {"clock", "time"}:
        amount_us = dice.choice((-1, 1)) * dice.choice((20, 100, 2_000)) * MS
        if kind == "clock" and dice.random() < 0.2:
            amount_us = dice.choice((-1, 1)) * 3_600 * SECOND
    if kind == "slow":
        for_us += SECOND
    service = "broker" if kind in BROKER_FAULTS else "safety" if kind in SAFETY_FAULTS else dice.choice(services)
    return Fault(kind, at_us, service, dice.randrange(0, 6), for_us, amount_us)


def _request_fault(dice: random.Random, kind: str, request: PlannedRequest, for_us: int) -> Fault:
    edge_ms = {
        "verdict": request.deadlines.verdict_ms,
        "late": request.deadlines.ttft_ms - request.answer.first_us // MS,
        "stall": request.deadlines.stall_ms,
        "gone": CLIENT_GRACE_MS,
    }.get(kind)
    # If a deadline guards against this kind of fault, the fault mostly ends close to that deadline.
    if edge_ms is not None and dice.random() < 0.6:
        for_us = max(1, edge_ms - dice.randrange(-20, 120)) * MS
    if kind == "roam":
        return _roam(dice, request)
    if kind == "failure":
        for_us += dice.randrange(0, 2)  # an odd number means that the worker dies
    return Fault(kind, request.at_us, "", request.number, for_us)
