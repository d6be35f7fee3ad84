"""Checks during a simulation, based on the records on the log."""

from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from schemas.requests import Request, received_us
from schemas.side_events import Attached, DeadLetter, Detached
from schemas.stream import Chunk, Cleared, Closed, Failed, Recall, Started, StreamEvent, Verdict
from schemas.topics import REQUESTS, REQUESTS_VERTEX
from services.bus import Received
from services.bus.records import Partition
from services.simulator.kafka.broker import SimulatedBroker, event_of
from services.simulator.tree.screens import read_events

if TYPE_CHECKING:
    from services.simulator.tree.streams import Stream
from services.stream import Governance, Screen, apply
from services.worker.scheduler import Scheduler, Ticket

FOR_EVER_US = 2**62

STALL_US = 1_500_000
"""Maximum time from the append of an event until its ops are sent to each open stream, if nothing disturbs the edge."""


class Violation(AssertionError):
    """A property that must hold in every simulation was broken.

    Attributes:
        promise: The property in words, such as "every request is closed".
    """

    def __init__(self, promise: str, sentence: str) -> None:
        super().__init__(promise, sentence)
        self.promise = promise

    def __str__(self) -> str:
        return ": ".join(self.args)


class Shown:
    def __init__(self, masked: set[int], frozen: str | None = None) -> None:
        self.masked = masked
        self.verdict: Verdict | None = None
        self.first_runs: dict[int, Started] = {}
        self._texts: dict[str, list[str]] = {}
        self._redacted: dict[str, tuple[tuple[int, int], list[str]]] = {}
        self._verdict_offset = FOR_EVER_US
        self._run_offsets: dict[int, int] = {}
        self.chunks: dict[str, dict[int, str]] = {}
        self.recalls: dict[str, list[tuple[int, Recall]]] = {}
        self.recall_ids: set[str] = set()
        self.cleared: dict[str, int] = {}
        self.attempt = 0
        self.frozen = frozen

    def take(self, event: StreamEvent, offset: int) -> None:
        if type(event) is Chunk:
            chunks = self.chunks.get(event.run)
            if chunks is None:
                chunks = self.chunks[event.run] = {}
            chunks.setdefault(event.seq, event.text)
            return
        match event:
            case Verdict() if offset < self._verdict_offset:
                self.verdict, self._verdict_offset = event, offset
            case Started() if offset < self._run_offsets.get(event.attempt, FOR_EVER_US):
                self.first_runs[event.attempt] = event
                self._run_offsets[event.attempt] = offset
            case Recall() if event.recall_id not in self.recall_ids:
                self.recall_ids.add(event.recall_id)
                self.recalls.setdefault(event.run, []).append((offset, event))
            case Cleared():
                seq = 2**31 if event.final else event.seq
                self.cleared[event.run] = max(self.cleared.get(event.run, -1), seq)

    def prefixes(self, run: str) -> list[str]:
        """Return the run's text after 0, 1, 2, ... chunks. Redacted spans are replaced.

        The list ends before the first missing chunk. If a run has chunk 0 ("a"), chunk 1 ("b") and chunk 3
        ("d"), the list is ``["", "a", "ab"]``.
        """
        chunks = self.chunks.get(run, {})
        recalls = self.recalls.get(run)
        if recalls is not None:
            in_order = sorted(recalls, key=itemgetter(0))
            if redactions := [recall for _, recall in in_order if recall.action == "redact"]:
                known = len(chunks), len(redactions)
                if self._redacted.get(run, (None,))[0] != known:
                    self._redacted[run] = known, _redacted(chunks, redactions)
                return self._redacted[run][1]
        texts = self._texts.setdefault(run, [""])
        while (piece := chunks.get(len(texts) - 1)) is not None:
            texts.append(texts[-1] + piece)
        return texts


def _redacted(chunks: dict[int, str], redactions: list[Recall]) -> list[str]:
    marks: list[Recall | None] = []
    texts, text, start = [""], "", 0
    while (piece := chunks.get(len(texts) - 1)) is not None:
        here = [recall for recall in redactions if recall.start < start + len(piece) and recall.end > start]
        text += "" if here else piece
        for offset in range(start, start + len(piece)) if here else ():
            mark = next((recall for recall in here if recall.start <= offset < recall.end), None)
            if mark is None:
                text += piece[offset - start]
            elif mark not in marks:
                marks.append(mark)
                text += mark.replacement
        start += len(piece)
        texts.append(text)
    return texts


class Step(NamedTuple):
    at_us: int
    event: StreamEvent
    attempts: int
    last_seq: int


class LogReplay:
    """The state of one request, updated with each event that is appended to the log.

    Attributes:
        texts: Visible text after each op, by op id.
        following: Id of the next op, by op id. The empty string maps to the first op.
        newest: Id of the newest op. It does not change after the request is closed.
        newest_us: Append time of the event that led to the op ``newest``.
    """

    def __init__(self, request_id: str) -> None:
        self.screen = Screen(request_id, Governance())
        self.texts: dict[str, str] = {}
        self.following: dict[str, str] = {}
        self._last = ""
        self.newest = ""
        self.newest_us = 0
        self.steps: list[Step] = []
        self._visible = ""

    def take(self, record: Received, event: StreamEvent, now_us: int) -> None:
        screen = self.screen
        over = screen.closed is not None
        ops = screen.feed(event, record.timestamp_ms)
        self.steps.append(tuple.__new__(Step, (now_us, event, screen.attempts, screen.last_seq)))
        if not ops:
            return
        op_id = ""
        for nth, op in enumerate(ops):
            self._visible = apply(self._visible, op)
            op_id = f"{record.partition}:{record.offset}:{nth}"
            self.texts[op_id] = self._visible
            self.following[self._last] = op_id
            self._last = op_id
        if not over:
            self.newest, self.newest_us = op_id, now_us


class Oracle:
    """Checks each record when it is appended, each op when it is sent to a client, and each committed offset."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self.replays: dict[str, LogReplay] = {}
        self.showed: set[str] = set()
        self.disturbed_us = 0
        self._dead: set[Partition] = set()
        self._committed: dict[int, int] = {}
        self._taken: dict[tuple[str, Partition], int] = {}
        self._begun: set[tuple[str, int]] = set()
        self.first_verdicts: dict[str, Verdict] = {}
        self._cleared: dict[tuple[str, str], int] = {}
        self._chunk_ends: dict[tuple[str, int], int] = {}
        self._recall_ids: set[str] = set()
        self._masked: dict[str, set[int]] = defaultdict(set)
        self._connected: dict[str, set[str]] = defaultdict(set)
        self._left_us: dict[str, int] = {}
        self._away_us: dict[str, int] = {}
        self._closed_us: dict[str, int] = {}
        broker.on_appended.append(self.on_appended)

    # The log

    def on_appended(self, record: Received) -> None:
        event, now_us = record.event, self._broker.now_us
        if isinstance(event, StreamEvent):
            replay = self.replays.get(event.request_id) or self._begin_replay(event.request_id)
            replay.take(record, event, now_us)
        if type(event) is Chunk:  # most events are chunks or ``Cleared``
            self._chunk_ends[event.run, event.seq] = event.start + len(event.text)
            return
        if type(event) is Cleared:
            end = self._chunk_ends.get((event.run, event.seq), 0)
            cleared = event.run, event.policy_version
            self._cleared[cleared] = max(self._cleared.get(cleared, 0), end)
            return
        match event:
            case Started() | Failed():
                self._begun.add((event.request_id, event.attempt))
            case Verdict():
                self.first_verdicts.setdefault(event.request_id, event)
            case Closed():
                self._closed_us[event.request_id] = now_us  # if a ``Closed`` is void, another one follows
            case Attached() | Detached():
                self._note_connection(event, now_us)
            case Recall():
                self._check_recall(event)
            case Request():
                self._check_attempt(event, record.topic)
            case DeadLetter():
                self._dead.add((event.topic, event.partition))
                if (event.topic, event.partition) not in self._broker.newer.values():
                    raise Violation("no record is unreadable", f"{event.topic}[{event.partition}]@{event.offset}")

    def away_us(self, request_id: str) -> int:
        """Return the longest time, in microseconds, for which all clients of the request were disconnected.

        If no client connects again, the time ends when the request is closed.
        """
        left_us = self._left_us.get(request_id)
        last_us = 0 if left_us is None else self._closed_us.get(request_id, FOR_EVER_US) - left_us
        return max(last_us, self._away_us.get(request_id, 0))

    def replay(self, request_id: str) -> LogReplay:
        return self.replays.get(request_id) or LogReplay(request_id)

    def _note_connection(self, event: Attached | Detached, now_us: int) -> None:
        request_id, connected = event.request_id, self._connected[event.request_id]
        if isinstance(event, Attached):
            connected.add(event.connection)
            away_us = now_us - self._left_us.pop(request_id, now_us)
            self._away_us[request_id] = max(away_us, self._away_us.get(request_id, 0))
            return
        connected.discard(event.connection)
        if not connected and event.reason != "complete":
            self._left_us.setdefault(request_id, now_us)

    def _begin_replay(self, request_id: str) -> LogReplay:
        replay = self.replays[request_id] = LogReplay(request_id)
        return replay

    def _check_recall(self, event: Recall) -> None:
        if event.recall_id in self._recall_ids:
            return
        self._recall_ids.add(event.recall_id)
        cleared = self._cleared.get((event.run, event.policy_version), 0)  # a check with another policy may find more
        if event.start < cleared:
            sentence = f"{event.run} was cleared to {cleared} before [{event.start}, {event.end})"
            raise Violation("cleared text is not recalled", sentence)

    def _check_attempt(self, event: Request, topic: str) -> None:
        if topic == REQUESTS_VERTEX.name:
            self._check_egress(event)
        verdict = self.first_verdicts.get(event.request_id)
        if verdict is not None and event.messages == verdict.masked:
            self._masked[event.request_id].add(event.attempt)

    def _check_egress(self, event: Request) -> None:
        verdict = self.first_verdicts.get(event.request_id)
        allowed = verdict is not None and verdict.decision != "deny" and verdict.egress == "allowed"
        if not allowed or event.egress == "forbidden":
            raise Violation("no forbidden egress", f"{self._name(event.request_id)} went to the cloud")

    # Screens

    def shown(self, request_id: str, frozen: str | None) -> Shown:
        return Shown(self._masked[request_id], frozen)

    def on_written(self, stream: "Stream", data: bytes) -> None:
        """Check that the ops in ``data`` are in order, and that the client may show the resulting text."""
        delivered = read_events(data, stream.written)
        if not delivered.states:
            return
        before, at = stream.written, delivered.states[-1]
        stream.written = at
        request_id, shown = stream.request.request_id, stream.shown
        name, visible = self._name(request_id), at.visible
        replay = self.replays[request_id]
        for state in delivered.states:
            following = replay.following.get(before.op_id)
            if following != state.op_id and state.op_id not in delivered.shortened:
                sentence = f"{name} has {state.op_id} after {before.op_id}, not {following}"
                raise Violation("every op is sent once, in order", sentence)
            before = state
            expected = replay.texts.get(state.op_id)
            if expected != state.visible:
                raise Violation("a stream equals the replay", f"{name} shows {state.visible!r}, not {expected!r}")
        if shown.frozen is not None:
            if visible != shown.frozen:
                raise Violation("an answer that was withdrawn stays so", f"{name} shows {visible!r}")
            return
        for op in delivered.ops:
            if op["op"] == "refuse":
                if shown.verdict is None or shown.verdict.decision != "deny" or visible != shown.verdict.refusal:
                    raise Violation("the first verdict counts", f"{name} was refused")
            elif op["op"] == "show":
                self.showed.add(request_id)
        shown.frozen = at.frozen
        if shown.frozen is None and visible:
            self._check_text(name, shown, visible)

    def on_not_found(self, request_id: str) -> None:
        raise Violation("nothing accepted is lost", f"{self._name(request_id)} is not on the log")

    def on_unknown_position(self, stream: "Stream") -> None:
        name = self._name(stream.request.request_id)
        raise Violation("every position can be resumed", f"{name} has no op {stream.written.op_id}")

    def check_rejected(self) -> None:
        """Check that each unreadable request was rejected and kept as a dead letter."""
        for request_id, (topic, number) in self._broker.newer.items():
            replay = self.replays.get(request_id)
            closed = None if replay is None else replay.screen.closed
            if closed is None or closed.outcome != "rejected":
                raise Violation("a request of a newer version is rejected", f"{request_id}: {closed}")
            if (topic, number) not in self._dead:
                raise Violation("a request of a newer version is kept", f"{topic}[{number}]")

    def check_stall(self, stream: "Stream", now_us: int) -> None:
        """Check that the newest op of an answer was written to the client's stream.

        The check is skipped if the stream has ended, or if its edge is slow or unreachable. It is also skipped for a
        short time after a fault, after the start of the stream, after a read by the client, and after the newest op
        itself.
        """
        replay = self.replays.get(stream.request.request_id)
        process, since_us = stream.process, now_us - STALL_US
        if replay is None or stream.reason is not None or not process.reachable or process.slow != 1:
            return
        if max(process.calm_us, stream.opened_us, stream.read_at_us, replay.newest_us, self.disturbed_us) > since_us:
            return
        if stream.written.op_id != replay.newest:
            name = self._name(stream.request.request_id)
            raise Violation("no stream stalls", f"{name} has {stream.written.op_id}, the log {replay.newest}")

    def _check_text(self, name: str, shown: Shown, visible: str) -> None:
        if shown.verdict is None:
            raise Violation("no text before the verdict", f"{name} shows {visible!r}")
        if shown.verdict.decision == "deny":
            raise Violation("no text after a denial", f"{name} shows {visible!r}")
        for attempt, started in shown.first_runs.items():
            prefixes = shown.prefixes(started.run)
            if visible not in prefixes:
                continue
            if attempt < shown.attempt:
                raise Violation("one voice", f"{name} shows attempt {attempt} after {shown.attempt}")
            if shown.verdict.decision == "mask" and attempt not in shown.masked:
                raise Violation("no answer to an unmasked prompt", f"{name} shows {visible!r}")
            shown.attempt = attempt
            if any(recall.action == "stop" for _, recall in shown.recalls.get(started.run, ())):
                raise Violation("an answer that was withdrawn stays so", f"{name} shows {visible!r}")
            delivery = shown.verdict.delivery or started.delivery
            exposed = prefixes.index(visible) - 1 - shown.cleared.get(started.run, -1)
            if exposed > (0 if delivery.mode == "gated" else delivery.max_exposure_tokens):
                raise Violation("exposure is bounded", f"{name} shows {visible!r}")
            return
        raise Violation("one voice, no gap, nothing recalled", f"{name} shows {visible!r}")

    # Offsets

    def on_commit(self, group: str, position: int, number: int, now_us: int, margin_us: int) -> None:
        """Check ``position``, an offset that the rails service committed for partition ``number``.

        Each request before this offset must have a verdict or have expired, with a tolerance of ``margin_us``.
        """
        log, appended_us = self._broker.log((REQUESTS.name, number)), self._broker.appended_us[REQUESTS.name, number]
        for record in log[self._committed.get(number, 0) : position]:
            request = event_of(record)
            if not isinstance(request, Request) or request.attempt > 1 or request.request_id in self.first_verdicts:
                continue
            received = received_us(request, appended_us[record.offset])
            if now_us < received + request.deadlines.total_ms * 1_000 - margin_us:
                sentence = f"{self._name(request.request_id)} has no verdict and was committed by {group}"
                raise Violation("nothing is committed before it is done", sentence)
        self._committed[number] = max(position, self._committed.get(number, 0))

    def on_begun(self, worker: str, scheduler: Scheduler, ticket: Ticket, slots: int) -> None:
        """Check that a worker runs no more requests than it has slots.

        Also check that it begins no batch request while an interactive request waits.
        """
        name = self._name(ticket.request_id)
        if scheduler.running > slots:
            raise Violation("a worker runs no more than it has slots for", f"{worker} begins {name}")
        if ticket.batch and scheduler._waiting:
            raise Violation("interactive requests go first", f"{worker} begins {name}")

    def on_taken(self, group: str, partition: Partition, position: int) -> None:
        """Check an offset that a worker committed: each request before the offset must have been started or refused."""
        for record in self._broker.log(partition)[self._taken.get((group, partition), 0) : position]:
            request = event_of(record)
            if isinstance(request, Request) and (request.request_id, request.attempt) not in self._begun:
                sentence = f"{self._name(request.request_id)}, attempt {request.attempt}, was committed by {group}"
                raise Violation("nothing is committed before it has begun", sentence)
        self._taken[group, partition] = max(position, self._taken.get((group, partition), 0))

    def _name(self, request_id: str) -> str:
        return f"request {self._broker.labels.get(request_id)}"
