"""The Faust application around the books: what it reads, its table, and when an event is done.

Faust commits an event's offset without waiting for what the event changed in a table: a kill between the two would
lose it. So events are taken without acknowledgement; the table's changelog is written here, and an event is
acknowledged, and its offset committed, only when the broker has all changes that it led to. What is read again after a
crash changes nothing (``services/books/partition.py``).
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from faust.types import TP

from schemas.errors import MalformedEvent, NewerVersion, UnknownKind
from schemas.registry import read_kinds
from schemas.topics import ACCOUNTS, RECEIPTS
from schemas.wire import KIND_HEADER, decode, header
from services.books import BooksConfig, Change, PartitionBooks, Source
from services.bus import BusSettings
from services.ledger.changelog import Changelog
from services.ledger.faust_flow import FaustApp, OffsetGuard
from services.ledger.settings import Settings
from services.runtime.metrics import LEDGER_LATE, LEDGER_OPEN, MALFORMED, SKIPPED

COMMIT_S: Final = 1.0

LINGER_S: Final = 0.005
"""How long the producer waits for the rest of a batch of changes, which are given to it one after the other."""

ACK_TIMEOUT_S: Final = 60.0
"""A broker that has not taken the changes by then ends the process: it starts again where it had committed."""

REVOKE_S: Final = 5.0
"""Longest that a rebalance waits for them."""

_SOURCES: Final[dict[str, Source]] = {ACCOUNTS.name: "accounts", RECEIPTS.name: "receipts"}
_WANTED: Final = read_kinds("ledger", ACCOUNTS, RECEIPTS) - {"Attached"}


class LedgerApp:
    """Faust, its one table and its one agent.

    Args:
        settings: See ``Settings``.
        on_ready: Called once, when the table was read back and events are taken.
        copies: How many copies the table's changelog gets.

    Attributes:
        books: Of the partitions that are held.
        ready: Whether events are taken.
    """

    def __init__(self, settings: Settings, on_ready: Callable[[], None], copies: int) -> None:
        self.books: dict[int, PartitionBooks] = {}
        self.ready = False
        self._config: BooksConfig = settings.config()
        self._changelog = Changelog(self._send)
        self._offsets = OffsetGuard()
        self._on_ready: Callable[[], None] | None = on_ready
        self.app = _make_app(settings, copies)
        self._table = self.app.Table("entries", partitions=settings.bus.partitions, key_type=bytes, value_type=bytes)
        self._table.on_recover(self._recovered)
        topic = self.app.topic(*_SOURCES, key_type=bytes, value_type=bytes, allow_empty=True)
        self.app.agent(topic, name="books")(self._agent)
        self.app.on_partitions_revoked.connect(self._revoked)

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            Exception: What ended Faust.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._changelog.run(), name="ledger-changelog")
            tasks.create_task(self._watch_ends(), name="ledger-ends")
            try:
                await self.app.start()
                await self.app.wait_until_stopped()
                raise self.app.crash_reason or RuntimeError("Faust stopped by itself")
            finally:  # before the tasks end: Faust waits until what was taken is acknowledged
                self.ready = False
                with contextlib.suppress(Exception):
                    await self.app.stop()

    async def _agent(self, stream: Any) -> None:
        try:
            async for event in stream.noack().events():
                number, changes = self._changes(event.message)
                await self._changelog.add(event, number, changes)
        except Exception as error:
            await self.app.crash(error)  # Faust would start the agent again behind the events that were taken
            raise

    def _changes(self, message: Any) -> tuple[int, list[Change]]:
        self._offsets.check(message)
        number, headers = message.partition, _headers(message)
        if header(headers, KIND_HEADER) not in _WANTED:
            return number, []
        try:
            event = decode(message.value, headers, message.key)
        except (UnknownKind, NewerVersion) as error:
            SKIPPED.labels(message.topic, type(error).__name__).inc()
            return number, []
        except MalformedEvent:  # the router makes a dead letter of it
            MALFORMED.labels(message.topic).inc()
            return number, []
        books = self._of(number)
        late = books.late
        changes = books.take(event, int(message.timestamp * 1_000))
        LEDGER_LATE.inc(books.late - late)
        for key, value in changes:  # at once: a rebalance makes the books again from the table
            if value is None:
                self._table.data.pop(key, None)
            else:
                self._table.data[key] = value
        return number, changes

    async def _send(self, number: int, change: Change) -> Any:
        """Give a change of the table to the producer; return what waits for the broker."""
        topic = self._table.changelog_topic.get_topic_name()
        return await self.app.producer.send(topic, change.key, change.value, number, None, None)

    def _of(self, number: int) -> PartitionBooks:
        books = self.books.get(number)
        if books is None:
            books = self.books[number] = PartitionBooks(number, self._config)
            books.restore(self._table.data.items())
        return books

    async def _recovered(self) -> None:
        self._offsets.forget()
        self.books.clear()  # made again from the table, each when it is needed
        for number in self._held():
            self._of(number)
        self.ready = True
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None

    async def _revoked(self, *_: Any, **__: Any) -> None:
        """Let the broker have every change first: a later one could overwrite what the next owner writes."""
        self.ready = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REVOKE_S):
                await self._changelog.written()

    def _held(self) -> list[int]:
        return sorted({tp.partition for tp in self.app.assignor.assigned_actives() if tp.topic in _SOURCES})

    async def _watch_ends(self) -> None:
        """Tell the books which topics were read to their ends, so that a silent one holds up no window."""
        while True:
            await asyncio.sleep(COMMIT_S)
            if not self.ready:
                continue
            consumer = self.app.consumer
            LEDGER_OPEN.set(sum(len(books.entries) for books in self.books.values()))
            busy = {(message.topic, message.partition) for message in consumer.unacked if not message.acked}
            for number, books in tuple(self.books.items()):
                for topic, source in _SOURCES.items():
                    if (topic, number) not in busy and await self._at_end(TP(topic, number)):
                        books.caught_up(source)

    async def _at_end(self, partition: TP) -> bool:
        consumer = self.app.consumer
        if partition not in consumer.assignment():
            return False
        end = consumer.highwater(partition)
        return end is not None and (await consumer.position(partition) or 0) >= end


def _headers(message: Any) -> list[tuple[str, bytes]]:
    headers = message.headers or ()
    return list(headers.items()) if isinstance(headers, dict) else list(headers)


def _make_app(settings: Settings, copies: int) -> Any:
    for name in ("faust", "mode", "services.ledger.faust_flow"):  # a line for each of its parts that starts or stops
        logging.getLogger(name).setLevel(logging.WARNING)
    bus: BusSettings = settings.bus
    addresses = ";".join(f"kafka://{host}:{port}" for host, port in bus.addresses())
    return FaustApp(
        settings.ledger_group,
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
