"""Check a campaign with nothing but the records on Kafka and the bytes that clients received.

The checks use plain JSON and strings, and no code of the product. These are the kinds of violations:

lost        an accepted request that is not on its topic, a request without a ``Closed``, a client that never gets the
            end of its answer, or a completed answer of which the client has only a part
twice       an op that a client received again or out of order
mixed       a screen that is not the beginning of one run's text, or that goes back to an earlier attempt
withdrawn   a screen with text that the edge was not allowed to show: recalled text, text after the withdrawal of the
            answer, or text without a verdict that allows it
dead        a dead letter
process     a process that ended by itself or did not stop cleanly, an error while a fault was injected, or an error in
            a client of the test
"""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

TOPICS = (
    "railbus.requests", "railbus.requests.batch", "railbus.requests.vertex", "railbus.streams", "railbus.dead",
)  # fmt: skip
HISTORY_FIELDS = (
    "attempt", "run", "seq", "last_seq", "final", "decision", "trigger", "target", "how", "seen_seq", "action", "start",
    "end", "outcome", "cause",
)  # fmt: skip


@dataclass
class Told:
    """The records of one request, as they were read from Kafka.

    Attributes:
        requests: Number of records on ``railbus.requests``.
        events: The request's records on the stream log, as (offset, kind, event), in the order of the log.
        written: Number of records of each attempt on all topics whose names begin with ``railbus.requests``.
        begun_ms: Append times of the ``Started`` records, in milliseconds since the epoch, in the order of the log.
    """

    partition: int = -1
    requests: int = 0
    events: list = field(default_factory=list)
    written: Counter = field(default_factory=Counter)
    begun_ms: list = field(default_factory=list)


class DoubleTake(NamedTuple):
    """An attempt that was executed twice.

    Attributes:
        second_ms: When the broker appended the second run's ``Started``, in milliseconds since the epoch.
        written: Number of records of this attempt on the topics whose names begin with ``railbus.requests``.
    """

    request_id: str
    attempt: int
    second_ms: float
    written: int


@dataclass
class Findings:
    requests: int = 0
    chunks: int = 0
    chunks_again: int = 0
    ops: int = 0
    outcomes: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    ends: Counter = field(default_factory=Counter)
    cutovers: Counter = field(default_factory=Counter)
    recalls: int = 0
    said_again: set = field(default_factory=set)
    double_takes: list = field(default_factory=list)
    resumes: int = 0
    violations: list = field(default_factory=list)
    histories: dict = field(default_factory=dict)

    def wrong(self, kind, request_id, what):
        self.violations.append((kind, request_id, what))


def history(events):
    """Return one line for each event, but only one for consecutive chunks of a run. The answer's text is left out."""
    lines, before = [], None
    for offset, kind, event in events:
        run = event["run"] if kind == "Chunk" else None
        if run is not None and run == before:
            lines[-1] = f"{lines[-1].partition(' to ')[0]} to {offset}: {event['seq']}"
        else:
            lines.append(f"{offset} {kind} { ({name: event[name] for name in HISTORY_FIELDS if name in event}) }")
        before = run
    return lines


async def read_log(bootstrap):
    """Read all records of the topics. Return a dict from request ids to ``Told``, and the dead letters."""
    told, dead = defaultdict(Told), []
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        for topic in TOPICS:
            numbers = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
            if not numbers:
                await consumer._client.force_metadata_update()
                numbers = [TopicPartition(topic, n) for n in sorted(await _partitions(consumer, topic))]
            consumer.assign(numbers)
            ends = await consumer.end_offsets(numbers)
            await consumer.seek_to_beginning(*numbers)
            while any([await consumer.position(at) < end for at, end in ends.items()]):
                for batch in (await consumer.getmany(timeout_ms=1_000, max_records=5_000)).values():
                    for record in batch:
                        _sort(told, dead, topic, record)
    finally:
        await consumer.stop()
    return told, dead


async def _partitions(consumer, topic):
    consumer._client.add_topic(topic)
    await consumer._client.force_metadata_update()
    return consumer.partitions_for_topic(topic) or set()


def _sort(told, dead, topic, record):
    event = json.loads(record.value)
    if topic == "railbus.dead":
        dead.append(event)
        return
    one = told[event["request_id"]]
    if topic.startswith("railbus.requests"):
        one.requests += topic == "railbus.requests"
        one.written[event["attempt"]] += 1
    elif topic == "railbus.streams":
        one.partition = record.partition
        kind = next(value.decode() for name, value in record.headers if name == "kind")
        one.events.append((record.offset, kind, event))
        if kind == "Started":
            one.begun_ms.append(record.timestamp)


def judge(told, dead, readers):
    """Check every request that is on the log or that an edge has accepted, and return the findings."""
    found = Findings(requests=len(told))
    for letter in dead:
        found.wrong("dead", letter.get("topic"), letter.get("reason"))
    for request_id, one in told.items():
        _judge_log(found, request_id, one)
    for reader in readers:
        found.ends[reader.over if not str(reader.over).startswith("lost") else "lost"] += 1
        found.resumes += reader.resumes
        one = told.get(reader.request_id)
        if one is None or not one.requests:
            found.wrong("lost", reader.request_id, "was accepted and is not on railbus.requests")
        if str(reader.over).startswith("lost"):
            found.wrong("lost", reader.request_id, f"{reader.transport}: {reader.over}")
        if one is not None:
            _Screening(found, reader, one).run()
    for request_id in {request_id for _, request_id, _ in found.violations} | found.said_again:
        if request_id in told:
            found.histories[request_id] = history(told[request_id].events)
    return found


def _judge_log(found, request_id, one):
    runs, chunks = defaultdict(set), set()
    closed, times = None, iter(one.begun_ms)
    for _, kind, event in one.events:
        if kind == "Chunk":
            key = (event["run"], event["seq"])
            found.chunks += key not in chunks
            found.chunks_again += key in chunks
            chunks.add(key)
        elif kind == "Started":
            attempt, at_ms = event["attempt"], next(times, 0)
            if runs[attempt] and event["run"] not in runs[attempt]:
                found.double_takes.append(DoubleTake(request_id, attempt, at_ms, one.written[attempt]))
            runs[attempt].add(event["run"])
        elif kind == "Cutover":
            found.cutovers[f"{event['trigger']} to {event.get('target', 'vertex')}"] += 1
        elif kind == "Recall":
            found.recalls += 1
        elif kind == "Closed" and closed is None:
            closed = event
    if closed is None:
        found.wrong("lost", request_id, f"was never closed; the last record is {one.events[-1:]}")
    else:
        found.outcomes[closed["outcome"]] += 1
        if closed["outcome"] not in {"completed", "recalled"}:
            found.reasons[f"{closed['outcome']}: {closed.get('reason', '')}"[:100]] += 1


class _Run:
    """The text of one run, as far as the log was read.

    Attributes:
        text: The text before any recall.
        shown: The text in which each recalled span is replaced.
        lengths: The lengths, in characters, that the text on a client's screen may have: 0, and each position in
            ``shown`` at which a chunk ends or a replacement starts or ends.
        stopped: The replacement for the whole text, if a recall has stopped the run.
    """

    def __init__(self, attempt):
        self.attempt = attempt
        self.pieces = {}
        self.text, self.next = "", 0
        self.spans = []
        self.stopped = None
        self._forget()

    def add(self, seq, text):
        self.pieces.setdefault(seq, text)
        while self.next in self.pieces:
            self._show(len(self.text), self.pieces[self.next])
            self.text += self.pieces[self.next]
            self.next += 1

    def take_back(self, start, end, replacement):
        """Recall a span of the text. Where spans overlap, the one that was recalled first applies."""
        if (start, end, replacement) in self.spans:
            return
        self.spans.append((start, end, replacement))
        self._forget()
        start = 0
        for seq in range(self.next):
            self._show(start, self.pieces[seq])
            start += len(self.pieces[seq])

    def has(self, visible):
        """Return whether ``shown`` begins with ``visible``, and ``lengths`` has the length of ``visible``."""
        return len(visible) in self.lengths and self.shown.startswith(visible)

    def _forget(self):
        self.shown, self.lengths, self._said = "", {0}, set()

    def _show(self, start, piece):
        if self.spans:
            out = []
            for place, letter in enumerate(piece, start):
                span = next((span for span in self.spans if span[0] <= place < span[1]), None)
                if span is None:
                    out.append(letter)
                elif span not in self._said:
                    self._said.add(span)
                    self.lengths.add(len(self.shown) + sum(map(len, out)))  # a replacement is an op of its own
                    out.append(span[2])
                    self.lengths.add(len(self.shown) + sum(map(len, out)))
            piece = "".join(out)
        self.shown += piece
        self.lengths.add(len(self.shown))


class _Screening:
    """A check that a client's screen, after each op, fits the records up to the op's position on the log."""

    def __init__(self, found, reader, one):
        self._found, self._reader, self._one = found, reader, one
        self._runs, self._first = {}, {}
        self._attempt, self._frozen = 0, None
        self._newest, self._race, self._taken_back = 1, False, False
        self._denied = None
        self._finished = {}

    def run(self):
        visible, last, at = "", (-1, -1, -1), 0
        events = self._one.events
        for place, ops in self._reader.received:
            if place <= last:
                self._wrong("twice", f"op {place} after {last}")
            last = max(last, place)
            while at < len(events) and events[at][0] <= place[1]:
                self._read(*events[at][1:])
                at += 1
            for op in ops:
                visible = _apply(visible, op)
                if op[0] == "instead":
                    self._frozen = visible
            self._found.ops += 1
            if not self._check(visible, place):
                return
        for event in events[at:]:
            self._read(*event[1:])
        if self._reader.over == "closed":
            self._check_whole(visible)

    def _read(self, kind, event):
        match kind:
            case "Started":
                if self._first.setdefault(event["attempt"], event["run"]) == event["run"]:
                    self._run(event)
            case "Chunk":
                self._run(event).add(event["seq"], event["text"])
            case "Recall":
                run = self._run(event)
                if event["action"] == "stop":
                    run.stopped = event.get("replacement", "")
                    # Without a race, only the newest attempt may be shown. If it is stopped, nothing may come after it.
                    newest = event["attempt"] == self._newest and self._first.get(self._newest) == event["run"]
                    self._taken_back |= newest and not self._race
                else:
                    run.take_back(event["start"], event["end"], event.get("replacement", ""))
            case "Cutover":
                self._newest = max(self._newest, event["attempt"])
                self._race |= event.get("how") == "race"
            case "Finished":
                self._finished[event["run"]] = event["last_seq"]
            case "Verdict":
                if self._denied is None:
                    self._denied = event["decision"] == "deny"

    def _run(self, event):
        if event["run"] not in self._runs:
            self._runs[event["run"]] = _Run(event["attempt"])
        return self._runs[event["run"]]

    def _check(self, visible, place):
        if self._frozen is not None:
            return visible == self._frozen or self._wrong("withdrawn", f"at {place} after the end: {visible[:80]!r}")
        if not visible:
            return True
        if self._denied is not False:
            return self._wrong("withdrawn", f"at {place}, without an allowing verdict: {visible[:80]!r}")
        runs = (self._runs[run_id] for run_id in self._first.values())
        fitting = [run for run in runs if run.attempt >= self._attempt and run.has(visible)]
        # The simulated engine says the same in each attempt: a text may fit a stopped run and another one.
        run = next((run for run in fitting if run.stopped is None), None)
        if self._taken_back or (fitting and run is None):
            return self._wrong("withdrawn", f"at {place}, the answer was taken back: {visible[-80:]!r}")
        if run is not None:
            if any(other.stopped is not None for other in fitting):
                self._found.said_again.add(self._reader.request_id)
            self._attempt = run.attempt
            return True
        return self._wrong(self._kind_of(visible), f"at {place}: ...{visible[-120:]!r}")

    def _kind_of(self, visible):
        """Return the kind of a wrong screen: ``withdrawn`` if it shows recalled text, otherwise ``mixed``."""
        for run in self._runs.values():
            if run.spans and run.text.startswith(visible):
                return "withdrawn"
        return "mixed"

    def _check_whole(self, visible):
        closed = next((event for _, kind, event in self._one.events if kind == "Closed"), None)
        if closed is None or closed["outcome"] != "completed":
            return
        for run_id, last_seq in self._finished.items():
            run = self._runs.get(run_id)
            if run is not None and run.next == last_seq + 1 and visible == run.shown:
                return
        lengths = {run_id: (run.next, self._finished.get(run_id)) for run_id, run in self._runs.items()}
        self._wrong("lost", f"completed, but the screen ends {visible[-60:]!r} ({len(visible)} characters; {lengths})")

    def _wrong(self, kind, what):
        self._found.wrong(kind, self._reader.request_id, f"{self._reader.transport}: {what}")
        return False


def _apply(visible, op):
    match op:
        case ("show", text):
            return visible + text
        case ("replace", start, end, text):
            return visible[:start] + text + visible[end:]
        case ("instead", text):
            return text
        case ("restart",):
            return ""
    return visible
