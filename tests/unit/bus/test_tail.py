"""Tests of a ``TailReader`` without a broker."""

import asyncio

import pytest

from schemas.topics import DEAD, LEDGER
from services.bus import BusSettings, TailReader
from services.bus.read import tail


async def test_a_reader_does_not_wait_for_records_that_the_broker_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, positions = {(DEAD, 0): 9, (LEDGER, 0): 5}, {(DEAD, 0): 7, (LEDGER, 0): 5}
    asked = []
    reader = TailReader(BusSettings(), handler=lambda _: None)

    async def end_offset(*partition: object) -> int:
        asked.append(partition)
        return 7

    monkeypatch.setattr(tail, "POLL_S", 0.0)
    monkeypatch.setattr(reader, "position", lambda *partition: positions[partition])
    monkeypatch.setattr(reader, "end_offset", end_offset)
    async with asyncio.timeout(30):
        await reader.read_through(ends)
    assert asked == [(DEAD, 0)]


async def test_a_reader_waits_until_the_end_has_been_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, positions = TailReader(BusSettings(), handler=lambda _: None), [None, 3, 9]
    monkeypatch.setattr(tail, "POLL_S", 0.0)
    monkeypatch.setattr(reader, "position", lambda *_: positions.pop(0))
    await reader.read_through({(DEAD, 0): 9})
    assert not positions
