"""Run a real ledger with a real broker. The test itself writes the events of the router and the edge."""

import asyncio
import time
from contextlib import asynccontextmanager

import aiohttp

from schemas.side_events import Account, Detached, Window
from schemas.topics import ACCOUNTS, LEDGER, RECEIPTS
from services.books import BooksConfig, PartitionBooks, newest, totals_of_windows
from services.bus import BusSettings, Producer, TailReader, ensure_topics
from tests.support.brokers import Broker
from tests.support.processes import ServiceProcess, free_port
from tests.support.waiting import comes_true
from tests.unit.books.events import T0_S, account, detached

PATIENCE_S = 90.0
WINDOW_S, KEEP_S = 2, 8


class Lab:
    """A broker, a producer that writes the events of router and edge, and one ledger process at a time."""

    def __init__(self, broker, folder, bus, producer):
        self.broker, self.folder, self.bus, self.producer = broker, folder, bus, producer
        self.port = free_port()
        self.sent = []
        self.ledger = None

    async def start_ledger(self, module="services.ledger", **env):
        values = {
            "RAILBUS_KAFKA_BOOTSTRAP": self.broker.address,
            "RAILBUS_HEALTH_PORT": str(self.port),
            "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "1500",
            "RAILBUS_LEDGER_DATA_DIR": str(self.folder / "faust"),
            "RAILBUS_LEDGER_WINDOW_S": str(WINDOW_S),
            "RAILBUS_LEDGER_KEEP_S": str(KEEP_S),
        }
        self.ledger = ServiceProcess(module, **(values | env))
        await self.ledger.ready()

    async def send(self, *events):
        for event in events:
            self.sent.append(event)
            await self.producer.post(ACCOUNTS if isinstance(event, Account) else RECEIPTS, event)

    def expected(self):
        """Return the sums of all events that were sent, computed in one pass with windows that never close."""
        books = PartitionBooks(0, BooksConfig(window_s=WINDOW_S, keep_s=10**6, show_s=10**7))
        for event in self.sent:
            books.take(event, int(time.time() * 1_000))
        return totals_of_windows(books.all_windows())

    async def published(self):
        """Return the sums of the windows on ``railbus.ledger``. Only the newest version of each window counts."""
        return totals_of_windows(newest(await self.windows()))

    async def windows(self):
        """Return every ``Window`` that was written to ``railbus.ledger``, including outdated versions of a window."""
        found = []
        reader = TailReader(self.bus, handler=lambda records: found.extend(record.event for record in records))
        reading = asyncio.create_task(reader.run())
        try:
            end = await reader.end_offset(LEDGER, 0)
            await reader.follow(LEDGER, 0, 0)
            assert await comes_true(lambda: (reader.position(LEDGER, 0) or 0) >= end, PATIENCE_S)
        finally:
            reading.cancel()
        assert all(isinstance(event, Window) for event in found)
        return found

    async def report(self, port=None):
        url = f"http://127.0.0.1:{port or self.port}/ledger"
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            return await response.json()

    async def comes_to_the_expected_sums(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found, expected = await self.published(), self.expected()
            if found == expected or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        assert found == expected


@asynccontextmanager
async def a_lab(folder):
    broker = Broker("embedded", folder / "log")
    broker.start()
    bus = BusSettings(bootstrap=broker.address)
    await ensure_topics(bus)
    producer = Producer(bus, role={ACCOUNTS.name: frozenset({Account}), RECEIPTS.name: frozenset({Detached})}, name="t")
    await producer.start()
    made = Lab(broker, folder, bus, producer)
    try:
        yield made
    finally:
        if made.ledger is not None:
            made.ledger.kill()
        await producer.stop()
        broker.kill()


def a_request(number, random_, now_s=None):
    """Return the account and the receipt of a made-up request that was closed just now, or at the time ``now_s``."""
    closed_s = (now_s or time.time()) - T0_S
    fields = {"tenant": random_.choice(["acme", "zeta"]), "route": random_.choice(["self_hosted", "cloud"])}
    outcome = random_.choice(["completed", "completed", "recalled", "failed"])
    return account(number, closed_s, outcome=outcome, **fields), detached(
        number, closed_s, waited_ms=random_.randint(100, 3_000), exposed_tokens=random_.randint(0, 60)
    )
