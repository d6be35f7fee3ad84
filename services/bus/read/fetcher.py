"""The read loop of group members and tail readers. It passes records to a synchronous callback.

For each broker that leads partitions to read, the loop has one connection with at most one fetch in flight. The broker
answers a fetch when it has enough new records, or after a time limit. The loop decodes the response, passes the records
to the callback, and sends the next fetch.
"""

# aiokafka's consumer is not used: it has four tasks and six waits for each response. With a stream of tokens, these
# would be most of the cost of reading.

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    for_code,
)

from services.bus.in_flight_limit import InFlightLimit
from services.bus.kafka.broker_health import backoff_s
from services.bus.kafka.cluster import Cluster
from services.bus.read.fetch_connection import FetchConnection
from services.bus.read.fetch_session import ClientFetchSession, ask_once
from services.bus.read.fetch_wire import PartitionData, decode
from services.bus.read.record_decoder import BrokenBatch, RawDecoder, RecordDecoder, unpack
from services.bus.records import Partition, Received, UnreadableRecord
from services.runtime.clock import steady_us
from services.runtime.errors import UserError
from services.runtime.logging import logger
from services.runtime.task_groups import first_error

_log = logger("bus")

MAX_RECORDS: Final = 500
"""Maximum number of records that are decoded before other tasks run, and that are handed over in one call."""

Events = Sequence[Received | UnreadableRecord]
HandOver = Callable[[Events, Mapping[Partition, int]], None]
"""Receives events, in log order within each partition, and each partition's next offset. An exception that it raises
ends the reader."""

OnMoved = Callable[[Partition, int, int], None]
"""Receives a partition, the offset that the broker no longer has, and the offset at which reading continues."""

OVERLAP_MS: Final = 10_000
"""If a broker crashes and loses the end of a log, its clock may also be set back, by this many milliseconds at most."""


class _ReadPosition:  # if reading jumps to another offset, a new object replaces this one
    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset = offset


_Step = tuple[Partition, _ReadPosition, int, Any]
"""A partition, its read position, and the two values that ``unpack`` yields: the next offset and the record."""


class _Answer(NamedTuple):  # of a fetch whose records were all handed over
    asked_us: int  # when the fetch was sent
    positions: Mapping[Partition, _ReadPosition]  # of the partitions that the fetch was for
    behind: frozenset[Partition]  # of which the broker has more records than the response contained


class Fetcher:
    """Reads partitions, each from a given offset on.

    Reading continues at another offset if the log no longer has a partition's next offset. This happens in two cases:

    - Retention has deleted the record. Reading continues at the oldest record.
    - The broker has lost the end of the log, for example in a power failure. Reading continues ``OVERLAP_MS`` before
      the timestamp of the last record that this object has read. So some records may be read twice. If this
      object has read no record of the partition, reading continues at the oldest record.

    Args:
        cluster: An open ``Cluster``.
        clock: Returns microseconds of a monotonic clock, such as ``steady_us``.
        least_bytes: A fetch waits for this many bytes of new records, as ``FetchConnection`` describes.
        on_moved: Called before reading continues at another offset. A caller that builds state from the partition's
            records must then build it again.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        decoder: RecordDecoder | RawDecoder,
        hand_over: HandOver,
        in_flight_limit: InFlightLimit | None = None,
        on_moved: OnMoved | None = None,
        clock: Callable[[], int] = steady_us,
        least_bytes: int = 1,
    ) -> None:
        self._least_bytes = least_bytes
        self._cluster = cluster
        self._clock = clock
        self._decoder = decoder
        self._hand_over = hand_over
        self._in_flight = in_flight_limit
        self._on_moved = on_moved
        self._read_ms: dict[Partition, int] = {}  # time of the last record read, also of partitions no longer read
        self._positions: dict[Partition, _ReadPosition] = {}
        self._moves = 0  # counts changes of ``_positions``, but not the progress of an offset
        self._led: dict[int, tuple[tuple[int, int], dict[Partition, _ReadPosition]]] = {}
        self._connections: dict[int, FetchConnection] = {}
        self._answers: dict[int, _Answer] = {}
        self._changed = asyncio.Event()

    def start_at(self, offsets: Mapping[Partition, int]) -> None:
        """Read each partition in ``offsets`` from its offset on. The other partitions are not affected."""
        for partition, offset in offsets.items():
            self._place(partition, offset)
        for node in {self._cluster.leader(partition) for partition in offsets}:
            if node is not None and node in self._connections:
                self._connections[node].interrupt()
        self._changed.set()

    def drop(self, partitions: Sequence[Partition] | None = None) -> None:
        for partition in tuple(self._positions) if partitions is None else partitions:
            self._positions.pop(partition, None)
        self._moves += 1

    def position(self, partition: Partition) -> int | None:
        """Return the next offset to read; None if the partition is not being read."""
        position = self._positions.get(partition)
        return None if position is None else position.offset

    def read_up_to_us(self, partition: Partition, node: int | None) -> int:
        """Return the time up to which the partition has been read; 0 if unknown. The time is by the reader's clock.

        All records that were appended to the partition before this time have been read. ``node`` is the id of the
        broker that leads the partition; None if no leader is known.
        """
        answer = None if node is None else self._answers.get(node)
        if answer is None or partition in answer.behind:
            return 0
        position = answer.positions.get(partition)
        return answer.asked_us if position is not None and self._positions.get(partition) is position else 0

    async def run(self) -> None:
        """Read until cancelled. While a broker is unreachable, wait, and then continue at the same offset."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for attempt in itertools.count():
                    self._changed.clear()
                    leaders = {self._cluster.leader(partition) for partition in self._positions}
                    for node in leaders:
                        if node is None or node in self._connections:
                            continue
                        self._connections[node] = connection = FetchConnection(self._cluster, node, self._least_bytes)
                        tasks.create_task(self._read(node, connection), name=f"fetch-{node}")
                    if None in leaders:
                        await self._cluster.refresh()
                        await asyncio.sleep(backoff_s(min(attempt, 3)))
                    else:
                        await self._changed.wait()
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _read(self, node: int, connection: FetchConnection) -> None:
        failures, session = 0, ClientFetchSession()
        asked: Mapping[Partition, _ReadPosition] = {}
        try:
            while True:
                if self._in_flight is not None:
                    await self._in_flight.wait()
                positions = self._led_by(node)
                if not positions:
                    return
                asked_us = self._clock()
                try:
                    same = positions is asked and session.goes_on  # only offsets read since then changed
                    moved = session.answered_for if same else positions
                    offsets = {partition: positions[partition].offset for partition in moved}
                    asked, answer = positions, await self._ask(connection, session, offsets, whole=not same)
                except IncompatibleBrokerVersion as error:
                    raise UserError(f"{error}: Apache Kafka 1.1 or newer is needed") from None
                except (KafkaError, OSError, TimeoutError):
                    session.reset()
                    connection.close()
                    await asyncio.sleep(backoff_s(failures))
                    failures += 1
                    await self._refresh()
                    continue
                if answer is not None:
                    failures = 0
                    await self._deliver(answer, positions, session)
                    self._answers[node] = _Answer(asked_us, positions, frozenset(session.behind))
        finally:
            connection.close()
            self._answers.pop(node, None)
            del self._connections[node]
            self._changed.set()

    async def _ask(
        self, connection: FetchConnection, session: ClientFetchSession, offsets: Mapping[Partition, int], *, whole: bool
    ) -> Iterator[PartitionData] | None:
        body = await connection.fetch(session.ask(offsets, whole=whole))
        if body is None:
            session.reset()
            return None
        answer = decode(body)
        if answer.error:
            raise for_code(answer.error)(f"fetch session: error {answer.error}")
        session.answered(answer.session_id)
        return answer.parts

    def _place(self, partition: Partition, offset: int) -> None:
        self._positions[partition] = _ReadPosition(offset)
        self._moves += 1

    def _led_by(self, node: int) -> dict[Partition, _ReadPosition]:
        version = (self._moves, self._cluster.leaders_version)
        known = self._led.get(node)  # cached, because it seldom changes
        if known is None or known[0] != version:
            led = {p: position for p, position in self._positions.items() if self._cluster.leader(p) == node}
            known = self._led[node] = (version, led)
            self._changed.set()  # a partition may have got a leader to which there is no connection yet
        return known[1]

    async def _deliver(
        self, parts: Iterator[PartitionData], positions: Mapping[Partition, _ReadPosition], session: ClientFetchSession
    ) -> None:
        errors: dict[Partition, int] = {}
        items = self._items(parts, positions, errors, session)
        while self._slice(items):
            await asyncio.sleep(0)
            if self._in_flight is not None:
                await self._in_flight.wait()
        if errors:
            await self._handle_errors(errors, positions)

    def _items(
        self,
        parts: Iterator[PartitionData],
        positions: Mapping[Partition, _ReadPosition],
        errors: dict[Partition, int],
        session: ClientFetchSession,
    ) -> Iterator[_Step]:
        for part in parts:
            partition = (part.topic, part.partition)
            position = positions.get(partition)
            if position is None:
                continue
            if part.error:
                errors[partition] = part.error
            else:
                for next_offset, record in unpack(part.records, position.offset) if part.records else ():
                    yield partition, position, next_offset, record
            session.read(part, position.offset)

    def _slice(self, items: Iterator[_Step]) -> bool:
        most = MAX_RECORDS if self._in_flight is None else max(1, min(MAX_RECORDS, self._in_flight.free))
        events: list[Any] = []  # as the decoder makes them
        progress: dict[Partition, int] = {}
        decode, looked_at = self._decoder.decode, 0
        current: _ReadPosition | None = None  # stays valid in this slice, because no other task runs meanwhile
        for partition, position, next_offset, record in items:
            if position is not current:
                # If the leader changed during the delivery, the new leader's connection may have read these records.
                if self._positions.get(partition) is not position or next_offset <= position.offset:
                    continue
                current = position
            position.offset = progress[partition] = next_offset
            looked_at += 1
            if record is not None:
                if type(record) is not BrokenBatch:
                    self._read_ms[partition] = record.timestamp
                event = decode(partition, record)
                if event is not None:
                    events.append(event)
            if looked_at >= most and (looked_at >= MAX_RECORDS or len(events) >= most):
                break
        self._decoder.count()
        if progress:
            self._hand_over(events, progress)
        return looked_at >= MAX_RECORDS or len(events) >= most

    async def _handle_errors(
        self, errors: Mapping[Partition, int], positions: Mapping[Partition, _ReadPosition]
    ) -> None:
        # The class docstring says where reading of these continues. A lost end of a log is not noticed if the log has
        # grown past the next offset again before the next fetch. Then records are skipped.
        gone = {p: positions[p].offset for p, code in errors.items() if for_code(code) is OffsetOutOfRangeError}
        for partition, begin in (await self._resume(gone)).items():
            if self._positions.get(partition) is positions[partition]:
                _log.warning("%s[%d]: offset %d is gone; reading on at %d", *partition, gone[partition], begin)
                self._place(partition, begin)
                if self._on_moved is not None:  # the callback may reposition the partition
                    self._on_moved(partition, gone[partition], begin)
        others = {for_code(code) for partition, code in errors.items() if partition not in gone}
        if TopicAuthorizationFailedError in others:
            raise UserError(f"the broker does not let this user read all of {sorted({t for t, _ in errors})}")
        if others:
            await asyncio.sleep(backoff_s(0))
            await self._refresh()

    async def _resume(self, gone: Mapping[Partition, int]) -> dict[Partition, int]:
        if not gone:
            return {}
        starts = await self._cluster.beginning_offsets(gone)
        for partition, begin in tuple(starts.items()):
            read_ms = self._read_ms.get(partition)
            if gone[partition] > begin and read_ms is not None:
                starts |= await self._cluster.offsets_for_time([partition], read_ms - OVERLAP_MS)
        return starts

    async def _refresh(self) -> None:
        await self._cluster.refresh()
        self._changed.set()


async def newest_records(cluster: Cluster, ends: Mapping[Partition, int]) -> dict[Partition, Any]:
    """Return the last record of each partition before its end offset in ``ends``, as an aiokafka record.

    If the leader of a partition is not known or does not answer, try again without limit. If the last record of a
    partition is gone or cannot be unpacked, the partition is left out.
    """
    wanted = {partition: end - 1 for partition, end in ends.items() if end > 0}
    found: dict[Partition, Any] = {}
    attempt = 0
    while wanted:
        before = len(wanted)
        for node in {cluster.leader(partition) for partition in wanted}:
            if node is None:
                continue
            connection = FetchConnection(cluster, node)
            try:
                asked = ask_once({p: at for p, at in wanted.items() if cluster.leader(p) == node})
                answer = await connection.fetch(asked)
            except (KafkaError, OSError, TimeoutError):
                continue
            finally:
                connection.close()
            parts = () if answer is None else tuple(decode(answer).parts)
            some = any(part.records for part in parts)
            for part in parts:
                if for_code(part.error).invalid_metadata:
                    continue  # it has another leader now
                if some and not part.error and not part.records:
                    continue  # the response had no room for it
                partition = (part.topic, part.partition)
                for _, record in unpack(part.records, wanted.pop(partition)):
                    if record is not None and type(record) is not BrokenBatch:
                        found[partition] = record
        if len(wanted) == before:
            await asyncio.sleep(backoff_s(attempt))
            await cluster.refresh()
            attempt += 1
    return found
