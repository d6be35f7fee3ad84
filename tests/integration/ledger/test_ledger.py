"""The real ledger on a real broker: killed, robbed of its folder, fed twice and late, it comes to the same sums."""

import asyncio
import os
import random
import shutil
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest

from schemas.side_events import Account, Detached, Window
from schemas.topics import ACCOUNTS, LEDGER, RECEIPTS
from services.books import BooksConfig, PartitionBooks, newest, totals_of_windows
from services.bus import BusSettings, Producer, RawRecord, TailReader, ensure_topics, write_raw_records
from tests.support.brokers import Broker
from tests.support.processes import ServiceProcess, free_port
from tests.support.waiting import comes_true
from tests.unit.books.events import T0_S, account, detached

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")

KILLS = int(os.environ.get("RAILBUS_TEST_LEDGER_KILLS", "3"))
"""How often the ledger is killed; 20 is what the books are judged by."""

PATIENCE_S = 90.0
WINDOW_S, KEEP_S = 2, 8


class Lab:
    """A broker, a producer that stands for router and edge, and one ledger at a time."""

    def __init__(self, broker, folder, bus, producer):
        self.broker, self.folder, self.bus, self.producer = broker, folder, bus, producer
        self.port = free_port()
        self.sent = []
        self.ledger = None

    async def start_ledger(self, **env):
        values = {
            "RAILBUS_KAFKA_BOOTSTRAP": self.broker.address,
            "RAILBUS_HEALTH_PORT": str(self.port),
            "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "1500",
            "RAILBUS_LEDGER_DATA_DIR": str(self.folder / "faust"),
            "RAILBUS_LEDGER_WINDOW_S": str(WINDOW_S),
            "RAILBUS_LEDGER_KEEP_S": str(KEEP_S),
        }
        self.ledger = ServiceProcess("services.ledger", **(values | env))
        await self.ledger.ready()

    async def send(self, *events):
        for event in events:
            self.sent.append(event)
            await self.producer.post(ACCOUNTS if isinstance(event, Account) else RECEIPTS, event)

    def expected(self):
        """The sums by one pass over the set of events, whose windows never close."""
        books = PartitionBooks(0, BooksConfig(window_s=WINDOW_S, keep_s=10**6, show_s=10**7))
        for event in self.sent:
            books.take(event, int(time.time() * 1_000))
        return totals_of_windows(books.all_windows())

    async def published(self):
        """The sums that ``railbus.ledger`` has."""
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
        return totals_of_windows(newest(found))

    async def report(self):
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{self.port}/ledger") as response:
            return await response.json()

    async def comes_to_the_expected_sums(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found, expected = await self.published(), self.expected()
            if found == expected or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        assert found == expected


@pytest.fixture
async def lab(tmp_path):
    async with a_lab(tmp_path) as made:
        yield made


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
    """Account and receipt of a request that was closed just now."""
    closed_s = (now_s or time.time()) - T0_S
    fields = {"tenant": random_.choice(["acme", "zeta"]), "route": random_.choice(["self_hosted", "cloud"])}
    outcome = random_.choice(["completed", "completed", "recalled", "failed"])
    return account(number, closed_s, outcome=outcome, **fields), detached(
        number, closed_s, waited_ms=random_.randint(100, 3_000), exposed_tokens=random_.randint(0, 60)
    )


async def test_the_ledger_answers_publishes_and_stops(lab):
    await lab.start_ledger()
    random_ = random.Random(1)
    for number in range(50):
        await lab.send(*a_request(number, random_))
    await lab.comes_to_the_expected_sums()
    report = await lab.report()
    assert report["total"]["requests"] == 50
    assert report["partitions"] == [0, 1, 2, 3]
    assert report["total"]["sums"]["delivered"] == 50
    async with aiohttp.ClientSession() as client:
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/ledger?seconds=x", 400)):
            async with client.get(f"http://127.0.0.1:{lab.port}{path}") as response:
                assert response.status == status, path
    assert await lab.ledger.stop() == 0


async def test_what_cannot_be_read_is_left_to_the_router(lab):
    await lab.start_ledger()
    await write_raw_records(
        lab.bus,
        [
            RawRecord(ACCOUNTS.name, 0, None, b"{", (("kind", b"Account"), ("v", b"1"))),
            RawRecord(ACCOUNTS.name, 1, b"k", None, ()),
            RawRecord(RECEIPTS.name, 2, b"k", b"\xff", (("kind", b"Detached"), ("v", b"99"))),
        ],
        name="t",
    )
    await lab.send(*a_request(0, random.Random(2)))
    await lab.comes_to_the_expected_sums()
    assert lab.ledger.running


@pytest.mark.slow
async def test_kills_a_lost_folder_repetitions_and_late_events_change_no_sum(lab):
    random_ = random.Random(3)
    stop = asyncio.Event()

    async def traffic():
        number = 0
        while not stop.is_set():
            one, two = a_request(number, random_)
            await lab.send(one, two)
            for event in (one, two):
                if random_.random() < 0.3:  # a router or an edge that wrote twice
                    await lab.send(event)
            if random_.random() < 0.05:  # long after its window was sealed
                await lab.send(*random_.sample(lab.sent, 2))
            number += 1
            await asyncio.sleep(0.005)

    writing = asyncio.create_task(traffic())
    await lab.start_ledger()
    for kill in range(KILLS):
        await asyncio.sleep(random_.uniform(0.2, 3.0))
        lab.ledger.kill()
        if kill % 2:
            shutil.rmtree(lab.folder / "faust", ignore_errors=True)
        await lab.start_ledger()
    await asyncio.sleep(KEEP_S + 2 * WINDOW_S)  # so that some windows are sealed
    stop.set()
    await writing
    await lab.comes_to_the_expected_sums()
    lab.ledger.kill()
    shutil.rmtree(lab.folder / "faust", ignore_errors=True)
    await lab.start_ledger()  # what it answers now it has from its changelog alone
    report = await lab.report()
    expected = lab.expected()
    assert report["total"]["requests"] == sum(totals.of("requests") for totals in expected.values())
    assert report["total"]["sums"]["good"] == sum(totals.of("good") for totals in expected.values())
    assert report["total"]["spent_ms"] == sum(totals.of("spent") for totals in expected.values()) / 1_000


async def test_two_ledgers_share_the_partitions(lab):
    await lab.start_ledger()
    random_ = random.Random(4)
    for number in range(100):
        await lab.send(*a_request(number, random_))
    await lab.comes_to_the_expected_sums()
    first, first_port, lab.port = lab.ledger, lab.port, free_port()
    try:
        await lab.start_ledger(RAILBUS_LEDGER_DATA_DIR=str(lab.folder / "faust-2"))
        for number in range(100, 200):
            await lab.send(*a_request(number, random_))
        await lab.comes_to_the_expected_sums()
        held = (await lab.report())["partitions"]
        lab.port = first_port
        assert 0 < len(held) < 4
        assert sorted(held + (await lab.report())["partitions"]) == [0, 1, 2, 3]
    finally:
        first.kill()
