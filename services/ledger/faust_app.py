"""The Faust application of the ledger.

Faust may commit the offset of an event before the event's changes to the table are written. So the ledger stores its
own offsets in the table, and starts to read at these offsets.
"""

# A crash between commit and write would lose the change. So the ledger writes the table's changelog itself, too.

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from faust.types import TP

from schemas.errors import MalformedEvent, NewerVersion, UnknownKind
from schemas.registry import read_kinds
from schemas.topics import ACCOUNTS, RECEIPTS
from schemas.wire import KIND_HEADER, decode, header
from services.books import BooksConfig, OtherWindowWidth, PartitionBooks, Source, TableChange
from services.bus import BusSettings
from services.ledger.changelog import Changelog
from services.ledger.faust_flow import BeginAt, BrokerError, FaustApp
from services.ledger.pauses import PauseWatch
from services.ledger.read_offsets import ReadOffsets, RecordsLost, first_offset
from services.ledger.settings import Settings
from services.runtime.clock import steady_us
from services.runtime.errors import UnavailableError, UserError
from services.runtime.metrics import LEDGER_LATE, LEDGER_OPEN, MALFORMED, SKIPPED

COMMIT_S: Final = 1.0

LINGER_S: Final = 0.005
"""Time for which the producer waits for further changes of a batch, because the changes of a batch are given to it one
after the other."""

ACK_TIMEOUT_S: Final = 60.0
"""Maximum time for the broker to acknowledge a change. If it takes longer, the process ends. The next process starts at
the offsets in the table."""

ENDS_S: Final = 10.0
"""Maximum time for the broker to return the first and end offsets of the partitions that this process reads."""

SEEK_AGAIN_S: Final = 10.0
"""Maximum time, after a seek to records that Faust skipped, until these records arrive."""

STAND_S: Final = 5.0
"""Maximum time without progress while a partition has unread records. After it the ledger seeks to the next record."""

REVOKE_S: Final = 5.0
"""Maximum time that a rebalance waits for changes to be written."""

_log = logging.getLogger("railbus.ledger")

_TOPICS: Final = {topic.name: topic for topic in (ACCOUNTS, RECEIPTS)}
_SOURCES: Final[dict[str, Source]] = {ACCOUNTS.name: "accounts", RECEIPTS.name: "receipts"}
_WANTED: Final = read_kinds("ledger", ACCOUNTS, RECEIPTS) - {"Attached"}


class _Sought(NamedTuple):
    offset: int
    until: int


class LedgerApp:
    """The Faust application with its table and its agent.

    Args:
        settings: The ledger's settings.
        on_ready: Called once, when ``ready`` becomes true.
        copies: Replication factor of the table's changelog.

    Attributes:
        books: Sums and requests of each assigned partition.
        pauses: Says whether this process was paused.
        ready: Whether the table is restored and events are processed.
    """

    def __init__(self, settings: Settings, on_ready: Callable[[], None], copies: int) -> None:
        self.books: dict[int, PartitionBooks] = {}
        self.ready = False
        self._config: BooksConfig = settings.config()
        self.pauses = PauseWatch(settings.bus.session_timeout_ms * 1_000)
        self._changelog = Changelog(self._send, self.pauses)
        self._bus = settings.bus
        self._sought: dict[TP, _Sought] = {}
        self._stands: dict[TP, _Sought] = {}
        self._on_ready: Callable[[], None] | None = on_ready
        self._refused: UserError | None = None
        self.app = _make_app(settings, copies, self._begin_at)
        self._table = self.app.Table("entries", partitions=settings.bus.partitions, key_type=bytes, value_type=bytes)
        self._read = ReadOffsets(self._table.data, _SOURCES)
        self._table.on_recover(self._recovered)
        topic = self.app.topic(*_SOURCES, key_type=bytes, value_type=bytes, allow_empty=True)
        self.app.agent(topic, name="books")(self._agent)
        self.app.on_partitions_revoked.connect(self._revoked)

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            UnavailableError: The broker refused a request of Faust, or this process was paused for longer than the
                session timeout.
            UserError: The stored sums are of windows with another width.
            Exception: Any other error that ended Faust.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pauses.run(), name="ledger-pauses")
            tasks.create_task(self._changelog.run(), name="ledger-changelog")
            tasks.create_task(self._watch_ends(), name="ledger-ends")
            try:
                await self.app.start()
                await self.app.wait_until_stopped()
                raise self.app.crash_reason or RuntimeError("Faust stopped by itself")
            except BrokerError as error:
                raise UnavailableError(f"the broker refused what Faust needs: {error}") from error
            finally:  # before the tasks end, because Faust waits for acknowledgements
                self.ready = False
                with contextlib.suppress(Exception):
                    await self.app.stop()

    async def _agent(self, stream: Any) -> None:
        try:
            async for event in stream.noack().events():
                message = event.message
                if not await self._is_next(message):
                    continue
                changes = self._changes(message)
                read = self._read.change(message)
                for key, value in (*changes, read):  # at once, because a rebalance restores from the table
                    if value is None:
                        self._table.data.pop(key, None)
                    else:
                        self._table.data[key] = value
                await self._changelog.add(event, message.partition, changes, read)
        except Exception as error:
            await self.app.crash(error)  # else Faust would restart the agent and skip these events
            raise

    async def _is_next(self, message: Any) -> bool:
        missing = self._read.missing(message)
        # If Faust skipped records before this one, seek to the skipped records and ignore this one.
        if not missing:
            return True
        text = f"offsets {missing.start} to {missing.stop - 1} of {message.topic}-{message.partition}"
        sought = self._sought.get(message.tp)
        if sought is not None and sought.offset == missing.start:
            if steady_us() > sought.until:
                raise RecordsLost(f"Faust left out {text}, and a seek did not bring them")
            return False
        first = await first_offset(self._bus, _TOPICS[message.topic], message.partition, missing.start)
        if first is not None and first >= message.offset:
            return True  # retention has deleted the skipped records
        _log.warning("Faust left out %s: reading them again", text)
        self._sought[message.tp] = _Sought(missing.start, steady_us() + int(SEEK_AGAIN_S * 1e6))
        await self.app.consumer.seek_back(message.tp, missing.start)
        return False

    def _changes(self, message: Any) -> list[TableChange]:
        number, headers = message.partition, _headers(message)
        if header(headers, KIND_HEADER) not in _WANTED:
            return []
        try:
            event = decode(message.value, headers, message.key)
        except (UnknownKind, NewerVersion) as error:
            SKIPPED.labels(message.topic, type(error).__name__).inc()
            return []
        except MalformedEvent:  # the router writes a dead letter about it
            MALFORMED.labels(message.topic).inc()
            return []
        books = self._of(number)
        late = books.late
        changes = books.take(event, int(message.timestamp * 1_000))
        LEDGER_LATE.inc(books.late - late)
        return changes

    async def _send(self, number: int, change: TableChange) -> Any:
        topic = self._table.changelog_topic.get_topic_name()
        return await self.app.producer.send(topic, change.key, change.value, number, None, None)

    def _begin_at(self, topic: str, number: int) -> int | None:
        return self._read.next_offset(topic, number) if topic in _SOURCES else None

    def _of(self, number: int) -> PartitionBooks:
        books = self.books.get(number)
        if books is None:
            books = PartitionBooks(number, self._config)
            try:
                books.restore(self._table.data.items())
            except OtherWindowWidth as other:
                raise UserError(
                    f"RAILBUS_LEDGER_WINDOW_S={self._config.window_s}: the stored sums are of windows of"
                    f" {other.width_s} s: set that width again, or set another RAILBUS_LEDGER_GROUP"
                ) from None
            self.books[number] = books
        return books

    async def _recovered(self) -> None:
        self.books.clear()  # restored from the table when needed
        self._sought.clear()
        self._stands.clear()
        try:
            for number in self._held():
                self._of(number)
        except UserError as error:
            self.pauses.restored()
            self._refused = error  # Faust ignores what this function raises
            await asyncio.Event().wait()  # so that Faust hands out no event until the process has ended
        self.pauses.restored()  # a large table takes long, and blocks the event loop meanwhile
        self.ready = True
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None

    async def _revoked(self, *_: Any, **__: Any) -> None:
        self.ready = False
        # A change that is sent after the rebalance could overwrite what the partition's next owner writes.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REVOKE_S):
                await self._changelog.written()

    def _held(self) -> list[int]:
        return sorted({tp.partition for tp in self.app.assignor.assigned_actives() if tp.topic in _SOURCES})

    async def _watch_ends(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            if self._refused is not None:
                for name in ("faust", "mode"):  # else they log tracebacks when they are stopped while they restore
                    logging.getLogger(name).setLevel(logging.CRITICAL + 1)
                raise self._refused
            LEDGER_OPEN.set(sum(len(books.entries) for books in self.books.values()))
            # Topics that were read to their end are marked, so that a topic without new records does not keep windows
            # open.
            if self.ready:
                with contextlib.suppress(BrokerError, TimeoutError):  # tried again after COMMIT_S
                    await self._look_at_ends()

    async def _look_at_ends(self) -> None:
        consumer = self.app.consumer
        asked = [TP(topic, number) for number in self.books for topic in _SOURCES]
        held = {tp: self.books[tp.partition] for tp in asked if tp in consumer.assignment()}
        # Taken before the request for the ends, because records read meanwhile may be newer than these ends.
        newest_ms = {tp: books.newest_ms for tp, books in held.items()}
        if not held:
            return
        async with asyncio.timeout(ENDS_S):
            starts = await consumer.earliest_offsets(*held)
            ends = await consumer.highwaters(*held)
        for tp, books in held.items():
            read = max(self._read.next_offset(tp.topic, tp.partition), starts[tp])
            if self.books.get(tp.partition) is not books:
                continue
            if read >= ends[tp]:
                books.caught_up(_SOURCES[tp.topic], newest_ms[tp])
                self._stands.pop(tp, None)
            else:
                await self._seek_if_it_stands(tp, read)

    async def _seek_if_it_stands(self, tp: TP, read: int) -> None:
        # ``_is_next`` notices skipped records only if a later record comes.
        stands = self._stands.get(tp)
        if stands is None or stands.offset != read or not self.ready:
            self._stands[tp] = _Sought(read, steady_us() + int(STAND_S * 1e6))
        elif steady_us() > stands.until:
            del self._stands[tp]
            await self.app.consumer.seek_back(tp, read)


def _headers(message: Any) -> list[tuple[str, bytes]]:
    headers = message.headers or ()
    return list(headers.items()) if isinstance(headers, dict) else list(headers)


def _make_app(settings: Settings, copies: int, begin_at: BeginAt) -> Any:
    for name in ("faust", "mode", "services.ledger.faust_flow"):  # they log a line at each start and stop of a part
        logging.getLogger(name).setLevel(logging.WARNING)
    bus: BusSettings = settings.bus
    addresses = ";".join(f"kafka://{server}" for server in bus.servers())
    return FaustApp(
        settings.ledger_group,
        begin_at=begin_at,
        broker=addresses,
        broker_credentials=_credentials(bus),
        broker_commit_interval=COMMIT_S,
        broker_session_timeout=bus.session_timeout_ms / 1_000,
        broker_heartbeat_interval=bus.session_timeout_ms / 5_000,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=settings.ledger_instance,
        producer_linger=LINGER_S,
        producer_request_timeout=ACK_TIMEOUT_S,
        topic_partitions=bus.partitions,
        topic_replication_factor=copies,
        topic_disable_leader=True,
        table_standby_replicas=0,
        store="memory://",
        key_serializer="raw",
        value_serializer="raw",
        datadir=settings.ledger_data_dir or Path(tempfile.gettempdir()) / "railbus-ledger",
        autodiscover=False,
        web_enabled=False,
        loop=asyncio.get_running_loop(),
    )


def _credentials(bus: BusSettings) -> Any:
    from faust import auth

    if bus.sasl:
        return auth.SASLCredentials(
            username=bus.sasl_username,
            password=bus.sasl_password,
            mechanism=bus.sasl_mechanism,
            ssl_context=bus.ssl_context(),
        )
    return auth.SSLCredentials(bus.ssl_context()) if bus.tls else None
