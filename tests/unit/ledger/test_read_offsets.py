"""Test that the ledger knows which record of a partition comes next, and notices a record that is left out."""

from dataclasses import dataclass

import pytest

from schemas.topics import ACCOUNTS
from services.bus import BusSettings, RawRecord, ensure_topics, write_raw_records
from services.ledger.read_offsets import ReadOffsets, first_offset
from tests.support.brokers import Broker


@dataclass
class Message:
    offset: int
    topic: str = "railbus.accounts"
    partition: int = 0


def test_a_record_that_is_left_out_is_noticed_and_a_repetition_is_none():
    table = {}
    read = ReadOffsets(table, {"railbus.accounts": "accounts"})
    assert read.next_offset("railbus.accounts", 0) == 0
    assert read.missing(Message(5)) == range(5)
    for offset in (0, 1, 2, 0, 1, 2, 3):
        message = Message(offset)
        assert not read.missing(message)
        key, value = read.change(message)
        table[key] = value
    assert read.next_offset("railbus.accounts", 0) == 4
    assert read.next_offset("railbus.accounts", 1) == 0
    assert not read.missing(Message(0, partition=1))
    assert read.missing(Message(6)) == range(4, 6)


@pytest.fixture
async def bus(tmp_path):
    broker = Broker("embedded", tmp_path)
    broker.start()
    settings = BusSettings(bootstrap=broker.address, partitions=2)
    await ensure_topics(settings)
    try:
        yield settings
    finally:
        broker.kill()


async def test_the_log_itself_says_which_record_is_the_next(bus):
    await write_raw_records(bus, [RawRecord(ACCOUNTS.name, 1, None, b"%d" % each, ()) for each in range(5)], name="t")
    assert await first_offset(bus, ACCOUNTS, 1, 3) == 3


async def test_a_log_that_does_not_say_is_not_waited_for_for_ever(bus, monkeypatch):
    monkeypatch.setattr("services.ledger.read_offsets.LOOK_S", 0.5)
    assert await first_offset(bus, ACCOUNTS, 0, 0) is None
