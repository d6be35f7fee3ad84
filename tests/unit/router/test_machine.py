"""Test routers with random interleavings of events.

At most two routers run. Each reads every topic at its own pace, so its decisions may be based on old information. The
events that a router writes reach the log with a delay. If a router is killed, its events that are not yet on the log
are lost. Workers write false, repeated and late events.
"""

from collections import defaultdict
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs

from schemas.base import AnyEvent, Event
from schemas.requests import Deadlines, Message, Request
from schemas.side_events import Account, Cancel
from schemas.stream import Closed, Cutover, Started, Verdict
from schemas.topics import ACCOUNTS, CONTROL, RECEIPTS, REQUESTS, REQUESTS_BATCH, REQUESTS_VERTEX, STREAMS, Topic
from services.router.config import FallbackLimits, RouterConfig
from services.router.core import RouterCore
from services.stream import Close, Screen
from tests.support.examples import examples
from tests.unit.router.closing_law import check_closed
from tests.unit.router.shared_log import SHARED, Member, SharedLog
from tests.unit.router.world import (
    MS,
    attached,
    chunk,
    cleared,
    detached,
    failed,
    finished,
    next_alarm_us,
    recall,
    request,
    request_id,
    started,
    tick,
    verdict,
)

MASKED = (Message(role="user", content="hello [NAME]"),)
DEADLINES = Deadlines(verdict_ms=1_500, ttft_ms=100, stall_ms=150, total_ms=2_000)
GATE = "hold"
MOST_REQUESTS = 2

WORDS = ("allow", "deny", "mask", "chunk", "answer", "start", "stop")
RUNS = ("r1", "r1", "r1", "zombie")

numbers = st.integers(0, MOST_REQUESTS - 1)
attempts = st.sampled_from([1, 1, 2, 2, 3, 4])
runs = st.sampled_from(RUNS)
topics = st.sampled_from(SHARED)


class Routers(SharedLog, RuleBasedStateMachine):
    policy = RouterConfig(fallback="vertex", input_gate=GATE, max_fallbacks=1, client_grace_ms=200, total_max_ms=4_000)
    lane = "interactive"
    deadlines = DEADLINES

    def __init__(self) -> None:
        super().__init__()
        self.joined = 0
        self.asked: dict[int, Request] = {}

    # What others write.

    @initialize(
        fallbacks=st.tuples(*[st.sampled_from(["cancel", "race"])] * MOST_REQUESTS),
        words=st.tuples(*[st.sampled_from(["allow", "allow", "mask", "keep", "later"])] * MOST_REQUESTS),
    )
    def begin(self, fallbacks: tuple[str, ...], words: tuple[str, ...]) -> None:
        """Write the first requests and their verdicts, and start one router.

        For each request, ``fallbacks`` has the fallback, and ``words`` has the verdict. ``keep`` allows the prompt but
        forbids egress. ``later`` means that no verdict is written yet.
        """
        for number, (fallback, word) in enumerate(zip(fallbacks, words, strict=True)):
            self.app_asks(number, fallback, "allowed", self.lane)
            if word == "keep":
                self.rails_judge(number, "allow", "forbidden", empty=False)
            elif word != "later":
                self.rails_judge(number, word, "allowed", empty=False)
        self.router_joins(list(SHARED))

    @rule(
        number=numbers,
        fallback=st.sampled_from(["cancel", "race", "off"]),
        egress=st.sampled_from(["allowed", "allowed", "forbidden"]),
        lane=st.sampled_from(["interactive", "interactive", "batch"]),
    )
    def app_asks(self, number: int, fallback: str, egress: str, lane: str) -> None:
        event = request(
            request_id(number), self.at_ms, fallback=fallback, egress=egress, lane=lane, deadlines=self.deadlines
        )
        if self.may_be_forgotten(request_id(number)):
            return
        self.asked.setdefault(number, event)
        self.append(REQUESTS, event)

    def may_be_forgotten(self, rid: str) -> bool:
        """Return whether request ``rid`` was closed so long ago that a router may have forgotten it."""
        accounts = zip(self.logs[ACCOUNTS.name], self.appended_us[ACCOUNTS.name], strict=True)
        ends_us = [at_us for event, at_us in accounts if isinstance(event, Account) and event.request_id == rid]
        return bool(ends_us) and self.now_us >= ends_us[0] + self.policy.window_us

    @rule(number=numbers, attempt=attempts, run=runs, hold=st.booleans())
    def worker_starts(self, number: int, attempt: int, run: str, hold: bool) -> None:
        if number in self.asked:
            event = started(
                request_id(number),
                self.at_ms,
                attempt,
                run,
                received_at=self.asked[number].at,
                queue_ms=(self.now_us - self.asked[number].at) / MS,
                deadlines=self.deadlines,
                input_gate="hold" if hold else GATE,
                output_check="on" if hold else "off",
            )
            self.append(STREAMS, event)

    @rule(number=numbers, attempt=attempts, run=runs, seq=st.integers(0, 2))
    def worker_speaks(self, number: int, attempt: int, run: str, seq: int) -> None:
        self.append(STREAMS, chunk(seq, request_id(number), self.at_ms, attempt, run))

    @rule(number=numbers, attempt=attempts, run=runs)
    def worker_answers(self, number: int, attempt: int, run: str) -> None:
        self.worker_starts(number, attempt, run, hold=False)
        self.worker_speaks(number, attempt, run, 0)
        self.worker_ends(number, attempt, run, 0, retryable=False)

    @rule(
        number=numbers, attempt=attempts, run=runs, last=st.integers(-1, 2), retryable=st.booleans(), dead=st.booleans()
    )
    def worker_ends(self, number: int, attempt: int, run: str, last: int, retryable: bool, dead: bool = False) -> None:
        rid = request_id(number)
        if last < 0:
            why = "engine_dead" if dead else "unavailable"
            self.append(STREAMS, failed(rid, self.at_ms, attempt, run, retryable=retryable, error_class=why))
        else:
            self.append(STREAMS, finished(last, rid, self.at_ms, attempt, run))

    @rule(
        number=numbers,
        decision=st.sampled_from(["allow", "allow", "mask", "deny"]),
        egress=st.sampled_from(["allowed", "allowed", "forbidden"]),
        empty=st.booleans(),
    )
    def rails_judge(self, number: int, decision: str, egress: str, empty: bool) -> None:
        masked = MASKED if decision == "mask" and not empty else None
        self.append(STREAMS, verdict(decision, request_id(number), self.at_ms, egress=egress, masked=masked))

    @rule(number=numbers, attempt=attempts, run=runs, action=st.sampled_from(["stop", "redact", "clear"]))
    def safety_speaks(self, number: int, attempt: int, run: str, action: str) -> None:
        rid = request_id(number)
        if action == "clear":
            event: AnyEvent = cleared(2, rid, self.at_ms, attempt=attempt, run=run)
        else:
            event = recall(rid, self.at_ms, action, run, attempt)
        self.append(STREAMS, event)

    @rule(number=numbers, comes=st.booleans())
    def client_moves(self, number: int, comes: bool) -> None:
        rid = request_id(number)
        self.append(RECEIPTS, attached(rid=rid, at_ms=self.at_ms) if comes else detached(rid=rid, at_ms=self.at_ms))

    # What happens to routers.

    @rule(
        wait_ms=st.sampled_from([1, 20, 90, 100, 150, 400]),
        awake=st.tuples(st.booleans(), st.booleans()),
        order=st.permutations(SHARED),
    )
    def time_passes(self, wait_ms: int, awake: tuple[bool, bool], order: list[Topic]) -> None:
        """Move the time on. Routers that are awake read everything and decide. Others are paused or lag behind."""
        self.now_us += wait_ms * MS
        for member, is_awake in zip(self.members, awake, strict=False):
            if is_awake:
                for topic in order:
                    self.deliver(member, topic, 1_000_000)
                self.send(member, tick(member.router, self.now_us, 1))

    @precondition(lambda self: len(self.members) < 2)
    @rule(order=st.permutations(SHARED))
    def router_joins(self, order: list[Topic]) -> None:
        """Start a router. It reads the topics in the given order, and decides only after it has read all of them."""
        member = Member(RouterCore(self.policy, f"router/{self.joined}", 1))
        self.joined += 1
        member.router.gained(0)
        for topic in order:
            self.deliver(member, topic, len(self.logs[topic.name]))
        self.members.append(member)
        self.send(member, member.router.caught_up(0, self.now_us, self.now_us))

    @precondition(lambda self: self.members)
    @rule(index=st.integers(0, 1))
    def router_is_killed(self, index: int) -> None:
        del self.members[index % len(self.members)]

    @precondition(lambda self: self.members)
    @rule(index=st.integers(0, 1), topic=topics, count=st.integers(1, 4))
    def router_reads(self, index: int, topic: Topic, count: int) -> None:
        self.deliver(self.members[index % len(self.members)], topic, count)

    @precondition(lambda self: self.members)
    @rule(index=st.integers(0, 1), topic=topics)
    def router_writes(self, index: int, topic: Topic) -> None:
        self.flush(self.members[index % len(self.members)], topic)

    @precondition(lambda self: self.members)
    @rule(number=numbers, wait_ms=st.sampled_from([100, 200, 400, 1_500, 2_000]), word=st.sampled_from(WORDS))
    def decision_is_overtaken(self, number: int, wait_ms: int, word: str) -> None:
        """Wait ``wait_ms``, and let all routers decide. Append events of request ``number``, and then the decisions.

        ``word`` says which events are appended.
        """
        while self.settle():
            pass
        self.time_passes(wait_ms, (True, True), list(SHARED))
        match word:
            case "chunk":
                self.worker_speaks(number, 1, "r1", 0)
            case "answer":
                self.worker_answers(number, 1, "r1")
            case "start":
                self.worker_starts(number, 1, "r1", hold=False)
            case "stop":
                self.safety_speaks(number, 1, "r1", "stop")
            case _:
                self.rails_judge(number, word, "allowed", empty=False)
        for member in self.members:
            self.flush(member, STREAMS)

    # The end.

    def teardown(self) -> None:
        """Let the routers run until nothing is left to do, for at most 30 s of simulated time. Then check the result.

        If no router is running, start one first.
        """
        if not self.members:
            self.router_joins(list(SHARED))
        end_us = self.now_us + 30_000 * MS
        while self.now_us < end_us:
            while self.settle():
                pass
            alarms = [at for member in self.members if (at := next_alarm_us(member.router, 1)) is not None]
            if not alarms:
                break
            self.now_us = min(max(min(alarms), self.now_us + MS), end_us)
            for member in self.members:
                self.send(member, tick(member.router, self.now_us, 1))
        self.check()

    def check(self) -> None:
        accounts: dict[str, set[str]] = defaultdict(set)
        for event in self.logs[ACCOUNTS.name]:
            assert isinstance(event, Account)
            accounts[event.request_id].add(event.outcome)
        for first in self.asked.values():
            rid = first.request_id
            screen, effective, spoken = self.fold(rid)
            assert screen.closed is not None, "every request closes"
            assert accounts[rid] == {screen.closed.outcome}, "the account tells the effective ending"
            self.check_ending(rid)
            self.check_cloud(first, effective, spoken)
            self.check_retries(first, effective, spoken)
        for member in self.members:
            known = {request_id(number) for number in self.asked}
            assert not known & member.router._partitions[0].requests.keys(), "nothing is owed any more"

    def check_ending(self, rid: str) -> None:
        """Check that the events before a request's effective ``Closed`` do not contradict it."""
        screen, before = Screen(rid), []
        for event in self.logs[STREAMS.name]:
            if not isinstance(event, Event) or event.request_id != rid:
                continue
            concluded = screen.conclusion
            ops = screen.feed(event)  # type: ignore[arg-type]
            if isinstance(event, Closed) and any(isinstance(op, Close) for op in ops):
                check_closed(event, before, concluded)
                break
            before.append(event)

    def check_cloud(self, first: Request, effective: dict[int, Cutover], spoken: Verdict | None) -> None:
        """Check that a prompt went to the cloud only if it was allowed to go, and that void cutovers had no effect."""
        sent = [e for e in self.logs[REQUESTS_VERTEX.name] if e.request_id == first.request_id]  # type: ignore[union-attr]
        for event in sent:
            assert isinstance(event, Request)
            assert event.attempt in effective, "only an effective cutover republishes"
            assert effective[event.attempt].target == "vertex"
            assert first.egress == "allowed"
            assert spoken is not None, "no verdict, no egress, while the gate holds"
            assert spoken.egress == "allowed"
            assert spoken.decision in {"allow", "mask"}
            assert event.messages == (MASKED if spoken.decision == "mask" else first.messages)
        for event in self.logs[CONTROL.name]:
            if isinstance(event, Cancel) and event.request_id == first.request_id and event.attempt is not None:
                assert effective, "no attempt is stopped alone without an effective cutover"

    def check_retries(self, first: Request, effective: dict[int, Cutover], spoken: Verdict | None) -> None:
        """Check that a request has no more retries than allowed, and that each has the right prompt and lane."""
        own, other = (REQUESTS_BATCH, REQUESTS) if first.lane == "batch" else (REQUESTS, REQUESTS_BATCH)
        again, stray = (
            [e for e in self.logs[topic.name] if e.request_id == first.request_id and e.attempt > 1]  # type: ignore[union-attr]
            for topic in (own, other)
        )
        assert not stray
        for event in again:
            assert isinstance(event, Request)
            if event.attempt > 1:
                assert effective[event.attempt].target == "generator"
                assert event.at == first.at, "the total deadline does not begin again"
                masked = spoken is not None and spoken.decision == "mask"
                assert event.messages == first.messages or (masked and event.messages == MASKED)
        retries = [c for c in effective.values() if c.target == "generator" and c.trigger != "mask"]
        batch = first.lane == "batch"
        assert len(retries) <= (self.policy.max_batch_retries if batch else self.policy.max_retries)

    def fold(self, rid: str) -> tuple[Screen, dict[int, Cutover], Verdict | None]:
        screen, effective = Screen(rid), {}
        for event in self.logs[STREAMS.name]:
            if isinstance(event, Event) and event.request_id == rid:
                before = screen.attempts
                screen.feed(event)  # type: ignore[arg-type]
                if screen.attempts > before:
                    assert isinstance(event, Cutover)
                    effective[event.attempt] = event
        return screen, effective, screen.verdict


class PoorRouters(Routers):
    """Routers whose fallback budget is one attempt. When it is spent, they close late requests."""

    policy = RouterConfig(
        fallback="vertex",
        input_gate=GATE,
        max_fallbacks=2,
        client_grace_ms=200,
        total_max_ms=4_000,
        limits=FallbackLimits(ratio=0, free=1),
        when_spent="close",
    )


class RetryingRouters(Routers):
    """Routers that try the self-hosted engines again before they use the cloud."""

    policy = replace(Routers.policy, max_retries=2, max_batch_retries=3)


class LoneRouters(Routers):
    """Routers that may not use the cloud. Their budget for retries on the self-hosted engines is one per minute."""

    policy = replace(
        Routers.policy, fallback="off", max_retries=2, retry_limits=FallbackLimits(ratio=0, free=1), when_spent="close"
    )


class BatchRouters(Routers):
    """Routers with batch requests. A request that waits in a queue is never late.

    If a worker fails a request, or starts it and falls silent, the request gets another attempt.
    """

    policy = replace(Routers.policy, max_batch_retries=3)
    lane = "batch"
    deadlines = structs.replace(DEADLINES, total_ms=26_000)

    @rule(wait_ms=st.sampled_from([2_000, 4_000, 10_000]))
    def much_time_passes(self, wait_ms: int) -> None:
        self.time_passes(wait_ms, (True, True), list(SHARED))

    def check_retries(self, first: Request, effective: dict[int, Cutover], spoken: Verdict | None) -> None:
        super().check_retries(first, effective, spoken)
        assert all(cutover.target == "generator" for cutover in effective.values()), "its class has no cloud"
        begun: set[int] = set()
        for event in self.logs[STREAMS.name]:
            if not isinstance(event, Event) or event.request_id != first.request_id:
                continue
            if isinstance(event, Started):
                begun.add(event.attempt)
            elif effective.get(getattr(event, "attempt", 0) or 0) is event and event.trigger in {"ttft", "stall"}:
                assert event.attempt - 1 in begun, "what waits in a queue is not late"


for machine in (Routers, PoorRouters, RetryingRouters, LoneRouters, BatchRouters):
    machine.TestCase.settings = settings(
        max_examples=examples(250), stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
TestRouters = Routers.TestCase
TestPoorRouters = PoorRouters.TestCase
TestRetryingRouters = RetryingRouters.TestCase
TestLoneRouters = LoneRouters.TestCase
TestBatchRouters = BatchRouters.TestCase
