"""Simulated broker: partitions with append times, and readers that fetch records."""

import random
from collections.abc import Callable
from heapq import heappush

from schemas.base import AnyEvent
from schemas.errors import NewerVersion
from schemas.ids import uuid7
from schemas.requests import Request
from schemas.stream import Cleared, Closed, Cutover, Finished, Recall, Verdict
from schemas.topics import REQUESTS, STREAMS
from services.bus import LogClock, Received, UnreadableRecord, partition_for
from services.bus.records import Partition
from services.simulator.kafka.hosts import ARRIVE, SimulatedProcess
from services.simulator.simulation import MS, Simulation

PARTITIONS = 4

FETCH_WAIT_US = 500 * MS
"""How long a fetch waits at the broker if there are no records. After that the reader sends the next fetch at once."""

WAY_US = 10 * MS
"""Maximum network time of a call to the broker and its response together, for a process that is not slow."""

MAX_FETCH = 8
"""Maximum number of records in the response to a fetch."""

LogRecord = Received | UnreadableRecord


def event_of(record: LogRecord) -> AnyEvent | None:
    return record.event if isinstance(record, Received) else None


OnAppended = Callable[[Received], None]


class SimulatedBroker:
    """An in-memory broker with the logs of all topics. Records are passed as objects, without encoding.

    Args:
        node_skews_us: How far the clock of each broker node is ahead of the simulation's clock.
    """

    def __init__(self, simulation: Simulation, node_skews_us: tuple[int, ...] = (0,)) -> None:
        self._simulation = simulation
        self.logs: dict[Partition, list[LogRecord]] = {}
        self.appended_us: dict[Partition, list[int]] = {}  # append time of each record, by the simulation's clock
        self.skew_us = 0  # is added to the clocks of all nodes
        self.newer: dict[str, Partition] = {}  # partitions of unreadable requests, by request id
        self.stepped_us = 0  # sum of the sizes of all clock steps and changes of leaders
        self.upgraded = False  # whether the safety service runs the next version
        # Recalls (partition and offset) that edges from before the upgrade cannot read.
        self.newer_recalls: set[tuple[Partition, int]] = set()
        self._node_skews_us = node_skews_us
        self.leaders: dict[Partition, int] = {}  # the node whose clock sets the timestamps
        self._readers: dict[Partition, list[LogReader]] = {}
        self.on_appended: list[OnAppended] = []
        self.labels: dict[str, int] = {}
        """For each request id, a number that stands for the id in timelines, because numbers are easier to read."""

    def log(self, partition: Partition) -> list[LogRecord]:
        log = self.logs.get(partition)
        if log is None:
            log = self.logs[partition] = []
            self.appended_us[partition] = []
            self.leaders[partition] = (len(partition[0]) + partition[1]) % len(self._node_skews_us)
        return log

    def move_leaders(self, number: int) -> None:
        """Make another broker node the leader of all partitions with this number.

        The new leader sets timestamps by its own clock, so timestamps may go back.
        """
        skews_us, most_us = self._node_skews_us, 0
        for partition in [partition for partition in self.leaders if partition[1] == number]:
            before = self.leaders[partition]
            after = self.leaders[partition] = (before + 1) % len(skews_us)
            most_us = max(most_us, abs(skews_us[after] - skews_us[before]))
        self.stepped_us += most_us

    def append(self, partition: Partition, event: AnyEvent, traceparent: str | None = None) -> None:
        simulation, log = self._simulation, self.logs.get(partition)
        if log is None:
            log = self.log(partition)
        name, number = partition
        now_us, offset = simulation.now_us, len(log)
        stamp_ms = (now_us + self.skew_us + self._node_skews_us[self.leaders[partition]]) // MS  # as in ``_stamp_ms``
        # Creating a plain tuple takes a third of the time of creating the named tuple.
        record = tuple.__new__(Received, (name, number, offset, stamp_ms, event, traceparent))
        log.append(record)
        if self.upgraded and isinstance(event, Recall):
            self.newer_recalls.add((partition, offset))
        self.appended_us[partition].append(now_us)
        simulation.schedule.append((now_us, name, number, type(event).__name__, getattr(event, "source", "")))
        if simulation.lines is not None:
            simulation.trace(f"p{number}", f"{name[8:]}@{offset} {self._label(event)}")
        for reader in self._readers.get(partition, ()):
            if not reader.asking:
                reader.wake()
        for told in self.on_appended:
            told(record)

    def append_newer(self, number: int) -> None:
        """Append a request in a format that the services cannot read.

        ``number`` is part of the seed of the request's id.
        """
        request_id = self._new_id(f"newer/{number}")
        partition = (REQUESTS.name, partition_for(request_id, PARTITIONS))
        log, now_us = self.log(partition), self._simulation.now_us
        error = NewerVersion("Request of version 99; this reader knows 1")
        record = UnreadableRecord(
            *partition, len(log), self._stamp_ms(partition), request_id.encode(), b"{}", (), error
        )
        self.newer[request_id] = partition
        self.labels[request_id] = -2
        log.append(record)
        self.appended_us[partition].append(now_us)
        self._simulation.note("broker", f"FAULT {partition[0]}[{partition[1]}]@{record.offset} is of a newer version")
        for reader in self._readers.get(partition, ()):
            reader.wake()

    def append_stray(self, number: int) -> None:
        """Append a verdict on a request that does not exist. The request's random id depends on ``number``."""
        request_id, now_us = self._new_id(f"stray/{number}"), self._simulation.now_us
        self.labels[request_id] = -3
        self._simulation.note("broker", "FAULT a verdict on an unknown request")
        verdict = Verdict(
            request_id=request_id, tenant="acme", at=now_us, source="stray", decision="deny", policy_version="scripted"
        )
        self.append((STREAMS.name, partition_for(request_id, PARTITIONS)), verdict)

    def _stamp_ms(self, partition: Partition) -> int:
        return (self._simulation.now_us + self.skew_us + self._node_skews_us[self.leaders[partition]]) // MS

    def _new_id(self, seed: str) -> str:
        bits = random.Random(f"{seed}/{self._simulation.random()}").getrandbits(74)  # noqa: S311 - an id is no secret
        return uuid7(self._simulation.now_us // MS, bits)

    def step(self, by_us: int) -> None:
        """Step the clocks of all broker nodes by ``by_us``."""
        self.skew_us += by_us
        self.stepped_us += abs(by_us)

    @property
    def now_us(self) -> int:
        return self._simulation.now_us

    def end(self, partition: Partition) -> int:
        return len(self.logs.get(partition, ()))

    def offset_for_time(self, partition: Partition, time_ms: int) -> int:
        """Return the offset of the first record with this timestamp or a later one; the end offset if there is none."""
        for record in self.logs.get(partition, ()):
            if record.timestamp_ms >= time_ms:
                return record.offset
        return self.end(partition)

    def newest_ms(self, partition: Partition) -> int | None:
        log = self.logs.get(partition)
        return log[-1].timestamp_ms if log else None

    def subscribe(self, reader: "LogReader") -> None:
        self._readers.setdefault(reader.partition, []).append(reader)

    def unsubscribe(self, reader: "LogReader") -> None:
        self._readers[reader.partition].remove(reader)

    def _label(self, event: AnyEvent) -> str:
        number = self.labels.get(getattr(event, "request_id", ""), -1)
        words = [type(event).__name__, f"#{number}", getattr(event, "source", "")]
        match event:
            case Verdict():
                words.append(event.decision)
            case Closed():
                words.append(f"{event.outcome}:{event.cause} seen {event.seen_seq}/{event.seen_attempts}")
            case Cutover():
                words.append(f"{event.trigger} {event.how} to {event.attempt} seen {event.seen_seq}")
            case Cleared():
                words.append(f"{event.run}<={event.seq}{' final' if event.final else ''}")
            case Recall():
                words.append(f"{event.run} {event.action} [{event.start}, {event.end})")
            case Finished():
                words.append(f"{event.run} last {event.last_seq}")
            case Request():
                words.append(f"attempt {event.attempt}")
            case _ if hasattr(event, "seq"):
                words.append(f"{getattr(event, 'run', '')} {getattr(event, 'seq', 0)}")
        return " ".join(words)


class LogReader:
    """Fetches the records of one partition for one process, and passes them to ``deliver``."""

    __slots__ = (
        "_asked_us", "_broker", "_deliver", "_log", "_process", "_simulation", "_waits_since_us", "_whole_us", "asking",
        "clock", "closed", "leader", "partition", "position",
    )  # fmt: skip

    def __init__(
        self,
        broker: SimulatedBroker,
        process: SimulatedProcess,
        partition: Partition,
        position: int,
        deliver: Callable[["LogReader", list[LogRecord]], None],
    ) -> None:
        self.partition = partition
        self.position = position
        self.closed = False
        self._broker = broker
        self._process = process
        self._simulation = process.simulation
        self._deliver = deliver
        self.leader: int | None = None
        self.clock: LogClock | None = None
        self.asking = False
        self._log = broker.log(partition)
        self._asked_us = began_us = process.simulation.now_us
        self._whole_us = 0
        self._waits_since_us = began_us if position >= len(self._log) else 0
        broker.subscribe(self)
        if position < len(self._log):
            self.wake()

    def wake(self) -> None:
        """Send a fetch, unless one is in flight."""
        if not self.asking:
            self.asking = True
            process, simulation = self._process, self._simulation
            self._asked_us = now_us = simulation.now_us
            if self._waits_since_us:
                if now_us - self._waits_since_us >= FETCH_WAIT_US + WAY_US:
                    self._wait_on()
                self._waits_since_us = 0
            at_us = now_us + (300 + int(simulation.random() * 2_700)) * process.slow  # as in ``Process.ask``
            heappush(simulation.heap, (at_us, simulation.next_order(), self._answer, (), process, ARRIVE))

    @property
    def since_us(self) -> int:
        """All records that were appended before this time have been read.

        The time is by the process's clock, in microseconds; 0 if unknown.
        """
        return self._process.steady_at_us(self._whole_us) if self._whole_us else 0

    def _wait_on(self) -> None:
        # A real consumer's fetches wait at the broker if there are no records. They are not simulated one by one.
        # Compute when the last fetch without records would have been sent.
        process, began_us = self._process, self._waits_since_us
        answered = (self._simulation.now_us - began_us - WAY_US) // FETCH_WAIT_US
        if process.reachable and process.reached_us <= began_us:
            self._whole_us = began_us + (answered - 1) * FETCH_WAIT_US

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._broker.unsubscribe(self)

    def _answer(self) -> None:
        if not self.closed:
            records = self._log[self.position : self.position + MAX_FETCH]
            process = self._process
            if process.undisturbed:
                self._receive(records)
            else:
                process.fire(self._receive, records)

    def _receive(self, records: list[LogRecord]) -> None:
        self.asking = False
        if self.closed:
            return
        count, asked_us = len(records), self._asked_us
        self.position = position = self.position + count
        again = position < len(self._log)
        if again:
            self.wake()
        if count:
            self._deliver(self, records)
        if count < MAX_FETCH:
            self._whole_us = asked_us
            self._waits_since_us = 0 if again else self._simulation.now_us
