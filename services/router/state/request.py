"""The state of one request, computed from its events on the log. No I/O, no clock.

The state has the request's prompt, its attempts, its connected clients, and the text that may be shown.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.account_details import RecallDetails
from schemas.base import Envelope, RequestRef, envelope
from schemas.requests import MAX_WAITED_MS, Deadlines, Lane, Request, received_us
from schemas.side_events import Attached, Detached
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, StreamEvent, Verdict
from services.router.config import RETRY_US, RouterConfig
from services.router.state.attempt import AttemptRecord
from services.stream import Governance, Screen
from services.stream.stages import StageRecorder

MOST_RECALLS: Final = 100
"""Maximum number of recalls that an account lists."""


class EventContext(NamedTuple):
    now_us: int
    source: str

    def envelope(self, about: RequestRef) -> Envelope:
        return envelope(about, at=self.now_us, source=self.source)


@dataclass(slots=True, eq=False)
class RequestState:
    """One request, from its first event to its account.

    Fields whose names end in ``_us`` are times in microseconds since the epoch, by this process's clock. If such a
    field is an append time, it was converted from the broker's clock to this clock.

    Topics are read in parallel, so any event of the request may be read first. No decision is made before the request
    is ``known``.

    Attributes:
        opened_us: Append time of the event that was read first.
        received_us: When the edge received the request, computed from append times. Deadlines count from here.
        last_chunk_us: Append time of the answer's newest chunk, or of the newest ``Cutover`` if that was later.
        begun_us: When a worker started the current attempt; 0 while the attempt waits in a queue.
        known: Whether a ``Request`` or a ``Started`` was read, so that the deadlines are known.
        may_fall_back: Whether the configuration, the class and the ``Request`` all allow the cloud.
        has_cloud_deadline: Whether a late first token sends the request to the cloud.
        request: The ``Request``; None before it was read. It has no messages if the prompt is not kept.
        client_gone_us: When the last connected client left without its complete answer. None if this has not happened,
            or if a client has connected since then.
        request_at: When the edge received the request, in microseconds since the epoch, by the edge's clock. None
            before the ``Request`` was read.
        checked: The newest event of the safety service, and its append time. The time is in milliseconds since the
            epoch, by the broker's clock.
        republished: Attempts 2 and later whose ``Request`` is on the log.
        cancelled: The numbers of the attempts for which a ``Cancel`` was written.
        over_budget: Whether a spent budget prevents a cutover that the request needs.
        bypass: Whether the breaker sends the request straight to the cloud.
        probe: Whether the request is a probe of the breaker.
        health_recorded: Whether the request's outcome (served in time or not) was already counted, by this router's
            breaker or by the previous router's breaker.
        timer_us: When the request's earliest timer is due; 0 if it has no timer.
        pending: The time of writing of each decision that was not read back from the log yet. A key names the decision,
            such as ``closed`` or ``cutover-2``. Times are in microseconds since the epoch, by this process's clock.
    """

    request_id: str
    tenant: str
    opened_us: int
    config: RouterConfig
    screen: Screen = field(init=False)
    stages: StageRecorder = field(init=False)
    received_us: int = field(init=False)
    attempt_opened_us: int = field(init=False)
    last_chunk_us: int = field(init=False)
    begun_us: int = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    deadline_us: int = 0
    known: bool = False
    lane: Lane | None = None
    service_class: str | None = None
    class_has_cloud: bool = True
    may_fall_back: bool = False
    has_cloud_deadline: bool = False
    request: Request | None = None
    prompt_kept: bool = False
    prompt_chars: int = 0
    traceparent: str | None = None
    client_gone_us: int | None = None
    attempt_records: dict[int, AttemptRecord] = field(default_factory=dict)
    request_at: int | None = None
    policy_version: str | None = None
    cutovers: dict[int, Cutover] = field(default_factory=dict)
    cutover_us: dict[int, int] = field(default_factory=dict)
    cloud_attempts: list[int] = field(default_factory=list)
    retries: list[int] = field(default_factory=list)
    failures: dict[int, Failed] = field(default_factory=dict)
    failed_us: int = 0
    recalls: set[str] = field(default_factory=set)
    recalled: list[RecallDetails] = field(default_factory=list)
    checked: tuple[Cleared | Recall, int] | None = None
    republished: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    closed_us: int = 0
    first_chunk_us: int = 0
    over_budget: bool = False
    bypass: bool = False
    probe: bool = False
    health_recorded: bool = False
    timer_us: int = 0
    pending: dict[str, int] = field(default_factory=dict)
    _connections: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        config = self.config
        governance = Governance(input_gate=config.input_gate, output_check=config.output_check)
        self.screen = Screen(self.request_id, governance)
        self.stages = StageRecorder(self.screen)
        self.received_us = self.attempt_opened_us = self.last_chunk_us = self.opened_us
        self.record(1)

    def on_request(self, request: Request, traceparent: str | None, at_us: int, log_ms: int) -> bool:
        """Apply a ``Request``. Return true for the ``Request`` of attempt 1, but only the first time it is read."""
        if request.attempt > 1:
            self.republished.add(request.attempt)
            self.pending.pop(request_key(request.attempt), None)
        if not self.known or (request.attempt == 1 and self.lane is None):  # deadlines from ``Started`` are provisional
            self._know(received_us(request, at_us), self.config.deadlines_of(request))
        if request.attempt > 1 or self.lane is not None:
            return False
        found = self.config.classes.of_request(request)
        self.lane, self.service_class, self.class_has_cloud = request.lane, found.name, found.cloud
        on_premises = self.config.fallback == "off" or request.fallback == "off" or request.egress != "allowed"
        self.may_fall_back = found.cloud and not on_premises
        self.has_cloud_deadline = self.may_fall_back and request.lane == "interactive"
        self.request_at, self.stages.posted_ms = request.at, log_ms
        self.traceparent = traceparent
        self.prompt_chars = sum(len(message.content) for message in request.messages)
        return True

    def on_receipt(self, event: Attached | Detached, at_us: int) -> None:
        """Record that a client attached or left. A client that left with its complete answer does not count as gone."""
        if isinstance(event, Attached):
            self._connections.add(event.connection)
            self.client_gone_us = None
            return
        self._connections.discard(event.connection)
        if not self._connections and event.reason != "complete":
            self.client_gone_us = at_us

    def on_chunk(self, event: Chunk, at_us: int, log_ms: int) -> bool:
        """Apply a chunk. Return whether a decision can be due now.

        A decision can be due only if the voice had no text before this chunk, or if the answer is over (complete,
        denied, withdrawn or closed).
        """
        screen = self.screen
        last_seq, had_spoken = screen.last_seq, screen.has_spoken
        self.stages.feed(event, log_ms)
        if screen.last_seq != last_seq:
            self.last_chunk_us = at_us
        if had_spoken:
            return screen.over
        if screen.has_spoken:
            self.first_chunk_us = at_us
        return True

    def on_cleared(self, event: Cleared, log_ms: int) -> bool:
        """Apply a ``Cleared`` event. Return whether the event can lead to a decision."""
        if self.policy_version is None:
            self.policy_version = event.policy_version
        self.checked = event, log_ms
        self.stages.feed(event, log_ms)
        return self.screen.over or not self.known

    def on_stream(self, event: StreamEvent, at_us: int, log_ms: int) -> None:
        """Apply an event.

        Args:
            event: The event.
            at_us: Time at which the event was appended, in microseconds of this process's clock.
            log_ms: The same time in milliseconds of the broker's clock.
        """
        screen = self.screen
        match event:
            case Chunk():
                self.on_chunk(event, at_us, log_ms)
            case Started():
                self._on_started(event, at_us, log_ms)
            case Finished() | Failed():
                self.stages.feed(event, log_ms)
                self._on_end(event, at_us, log_ms)
            case Cutover():
                self._on_cutover(event, at_us, log_ms)
            case Closed():
                self._on_closed(event, at_us, log_ms)
            case Recall():
                voice = screen.voice
                if voice is not None and voice.attempt == event.attempt and voice.run == event.run:
                    self.recalls.add(event.recall_id)
                self._on_recall(event, log_ms)
                self.stages.feed(event, log_ms)
            case Cleared():
                self.on_cleared(event, log_ms)
            case Verdict() if self.policy_version is None:
                self.policy_version = event.policy_version
                self.stages.feed(event, log_ms)
            case _:
                self.stages.feed(event, log_ms)

    def _on_started(self, event: Started, at_us: int, log_ms: int) -> None:
        self.stages.feed(event, log_ms)
        record = self.record(event.attempt)
        if record.started is None:  # no later run of the attempt counts
            record.started = event
            if event.attempt == self.screen.attempts:
                self.begun_us = at_us
        queue_us = int(event.queue_ms * 1_000)
        if not self.known and queue_us <= self.config.window_us:
            self._know(at_us - min(queue_us, MAX_WAITED_MS * 1_000), self.config.narrow(event.deadlines))

    def should_write(self, key: str, known_us: int, context: EventContext) -> bool:
        """Return whether to write the decision ``key`` now. If so, also store the present time in ``pending``.

        A decision in ``pending`` was written, but not read back from the log yet. It may be written again when the
        router has read the log up to ``RETRY_US`` after the time stored in ``pending``.

        Args:
            key: Names the decision.
            known_us: The time up to which the log was read, in microseconds.
            context: Has the present time.
        """
        written_us = self.pending.get(key)
        if written_us is not None and known_us - written_us < RETRY_US:
            return False
        self.pending[key] = context.now_us
        return True

    @property
    def most_retries(self) -> int:
        return self.config.max_batch_retries if self.lane == "batch" else self.config.max_retries

    @property
    def awaits_verdict(self) -> bool:
        """Whether the answer is held back until a verdict is read."""
        screen = self.screen
        if screen.verdict is not None:
            return False
        return self.config.input_gate == "hold" or (screen.voice is not None and screen.voice.input_gate == "hold")

    def running(self) -> list[int]:
        records, opened = self.attempt_records, range(1, self.screen.attempts + 1)
        return [n for n in opened if n not in self.cancelled and not (n in records and records[n].ended)]

    def record(self, attempt: int) -> AttemptRecord:
        found = self.attempt_records.get(attempt)
        if found is None:
            found = self.attempt_records[attempt] = AttemptRecord(attempt, self.stages.run(attempt))
        return found

    def _on_cutover(self, event: Cutover, at_us: int, log_ms: int) -> None:
        before = self.screen.attempts
        self.stages.feed(event, log_ms)
        self.pending.pop(cutover_key(event.attempt), None)
        if self.screen.attempts == before:
            return
        self.cutovers[event.attempt] = event
        self.cutover_us[event.attempt] = at_us
        if event.target == "vertex":
            self.cloud_attempts.append(event.attempt)
        elif event.trigger != "mask":
            self.retries.append(event.attempt)
        record = self.record(event.attempt)
        record.trigger, record.opened_us = event.trigger, log_ms * 1_000
        self.attempt_opened_us = self.last_chunk_us = at_us
        self.begun_us = 0

    def _on_recall(self, event: Recall, log_ms: int) -> None:
        self.checked = event, log_ms
        if len(self.recalled) < MOST_RECALLS:
            details = RecallDetails(
                appended_at=log_ms * 1_000, action=event.action, rule=event.rule, category=event.category
            )
            self.recalled.append(details)

    def _on_end(self, event: Finished | Failed, at_us: int, log_ms: int) -> None:
        record = self.record(event.attempt)
        counts = record.started is None or record.started.run == event.run
        if record.ended or not counts:  # a failure before any ``Started`` counts as the attempt's
            return
        record.last, record.last_ms = event, log_ms
        if isinstance(event, Failed):
            self.failures[event.attempt] = event
            self.failed_us = at_us

    def _on_closed(self, event: Closed, at_us: int, log_ms: int) -> None:
        self.stages.feed(event, log_ms)
        if self.screen.closed is event:
            self.closed_us = at_us
        if self.screen.closed is not None:
            return
        self.pending.pop("closed", None)  # the ``Closed`` is void, so decide again at once
        if event.cause == "unreadable" and not self.known:
            self._know(at_us, self.config.narrow(Deadlines()))  # its own deadlines cannot be read

    def _know(self, received_us: int, deadlines: Deadlines) -> None:
        self.known = True
        self.received_us = received_us
        if self.screen.attempts == 1:
            self.attempt_opened_us = received_us
        self.deadlines = deadlines
        self.deadline_us = self.received_us + deadlines.total_ms * 1_000


def request_key(attempt: int) -> str:
    return f"request-{attempt}"


def cutover_key(attempt: int) -> str:
    return f"cutover-{attempt}"
