"""Test that a ledger's sums are right even if it is killed, loses its folder, or gets events twice or late."""

import asyncio
import os
import random
import shutil
import time

import aiohttp
import pytest

from schemas.topics import ACCOUNTS, LEDGER, RECEIPTS
from services.books import BooksConfig, PartitionBooks, totals_of_windows
from services.bus import Producer, RawRecord, write_raw_records
from services.cli.commands.ledger import _windows as published_windows
from tests.integration.ledger.lab import KEEP_S, WINDOW_S, a_lab, a_request
from tests.support.processes import free_port
from tests.support.waiting import until

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")

KILLS = int(os.environ.get("RAILBUS_TEST_LEDGER_KILLS", "3"))
"""How often the ledger is killed. The measurement in ``tests/bench/RESULTS.md`` uses 20."""


@pytest.fixture
async def lab(tmp_path):
    async with a_lab(tmp_path) as made:
        yield made


async def test_the_ledger_answers_publishes_and_stops(lab):
    await lab.start_ledger()
    random_ = random.Random(1)
    for number in range(50):
        await lab.send(*a_request(number, random_))
    await lab.comes_to_the_expected_sums()

    async def has_all():  # a ledger that the machine held up is given its partitions again
        return (await lab.report())["partitions"] == [0, 1, 2, 3]

    await until(has_all, "it has every partition", every_s=0.5)
    report = await lab.report()
    assert report["total"]["requests"] == 50
    assert report["total"]["sums"]["delivered"] == 50
    async with aiohttp.ClientSession() as client:
        for path, status in (
            ("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/ledger?seconds=x", 400),
            ("/ledger?seconds=%C2%B2", 400), ("/ledger?seconds=" + "9" * 5_000, 400),
        ):  # fmt: skip
            async with client.get(f"http://127.0.0.1:{lab.port}{path}") as response:
                assert response.status == status, path
    assert await lab.ledger.stop() == 0


async def test_a_topic_that_the_broker_cannot_make_is_one_line(lab):
    """If the broker cannot create a topic, the ledger ends with one line that says so, without a traceback.

    To write its list of topics, the broker creates a file ``topics.json.new``. In this test, the broker cannot create
    the file, because a folder already has this name.
    """
    (lab.folder / "log" / "topics.json.new").mkdir()
    with pytest.raises(AssertionError, match="ledger ended"):
        await lab.start_ledger()
    assert await lab.ledger.ended() == 1
    said = lab.ledger.stderr.splitlines()
    assert said[-1].startswith("railbus ledger: the broker refused what Faust needs: ")
    assert "ledger-entries-changelog" in said[-1]
    assert "Traceback" not in lab.ledger.stderr


async def test_another_width_of_windows_is_refused_in_one_sentence(lab):
    await lab.start_ledger()
    random_ = random.Random(8)
    for number in range(4_000):
        await lab.send(*a_request(number, random_))
        if number % 20 == 0 and any(window.final for window in await lab.windows()):
            break
        await asyncio.sleep(0.02)
    assert await lab.ledger.stop() == 0
    lab.ledger.kill()
    with pytest.raises(AssertionError, match="ledger ended"):
        await lab.start_ledger(RAILBUS_LEDGER_WINDOW_S=str(WINDOW_S + 1))
    assert await lab.ledger.ended() == 2
    said = lab.ledger.stderr.splitlines()
    assert said[-1].startswith(f"railbus ledger: RAILBUS_LEDGER_WINDOW_S={WINDOW_S + 1}: the stored sums are of ")
    assert "RAILBUS_LEDGER_GROUP" in said[-1]
    assert "Traceback" not in lab.ledger.stderr


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


async def test_what_comes_while_faust_seeks_is_booked(lab):
    random_ = random.Random(6)
    stop = asyncio.Event()

    async def traffic():
        number = 0
        while not stop.is_set():
            await lab.send(*a_request(number, random_))
            number += 1
            await asyncio.sleep(0.02)

    writing = asyncio.create_task(traffic())
    for _ in range(2):
        await lab.start_ledger("tests.integration.ledger.slow_seek")
        await asyncio.sleep(1.0)
        lab.ledger.kill()
    await lab.start_ledger("tests.integration.ledger.slow_seek")
    stop.set()
    await writing
    await lab.comes_to_the_expected_sums()


async def test_what_faust_leaves_out_is_read_again(lab):
    await lab.start_ledger("tests.integration.ledger.lossy_faust")
    random_ = random.Random(7)
    for number in range(300):
        await lab.send(*a_request(number, random_))
        await asyncio.sleep(0.005)
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


async def test_a_week_is_added_up_however_often_its_windows_were_published(lab, monkeypatch):
    """A window that was published many times counts as one window when ``MAX_WINDOWS`` is checked."""
    monkeypatch.setattr("services.cli.commands.ledger.MAX_WINDOWS", 10)
    books, random_ = PartitionBooks(0, BooksConfig()), random.Random(6)
    producer = Producer(lab.bus, role="ledger", name="ledger/1")
    await producer.start()
    try:
        for number in range(60):
            books.take(a_request(number, random_)[0], int(time.time() * 1_000))
            await asyncio.gather(*[await producer.post(LEDGER, window) for window in books.dirty(100)])
    finally:
        await producer.stop()

    found = await published_windows(lab.bus, 0)

    assert totals_of_windows(found) == totals_of_windows(books.all_windows())


async def test_without_any_receipt_windows_are_sealed_all_the_same(lab):
    await lab.start_ledger()
    random_ = random.Random(5)
    for number in range(4_000):
        one, _ = a_request(number, random_)
        await lab.send(one)
        if number % 20 == 0 and any(window.final for window in await lab.windows()):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no window was sealed")


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

        async def shared():  # a ledger may have booked all before the other one is given its partitions
            one, two = [(await lab.report(port))["partitions"] for port in (first_port, lab.port)]
            return one and two and sorted(one + two) == [0, 1, 2, 3]

        await until(shared, "each has some of the partitions", within_s=90, every_s=0.5)
    finally:
        first.kill()
