"""Test which windows the ledger publishes, and that it publishes none that another ledger may have replaced."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("faust", reason="needs faust-streaming: pip install 'railbus[faust]'")

from services.books import BooksConfig, PartitionBooks
from services.ledger import pauses
from services.ledger import service as module
from services.ledger.pauses import PauseWatch
from services.ledger.service import LedgerService
from services.runtime.errors import UnavailableError
from tests.support.waiting import comes_true
from tests.unit.books.events import T0_MS, account


class Producer:
    def __init__(self):
        self.posted = []

    async def post(self, topic, event):
        self.posted.append(event)
        acknowledged = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        return acknowledged


@pytest.fixture
def service(monkeypatch):
    """Return a ledger whose books have one changed window, without Faust."""
    monkeypatch.setattr(module, "PUBLISH_S", 0.01)
    books = PartitionBooks(0, BooksConfig())
    books.take(account(), T0_MS)
    made = LedgerService.__new__(LedgerService)
    made._ledger = SimpleNamespace(books={0: books}, ready=True, pauses=PauseWatch(10_000_000))
    made._producer = Producer()
    return made


async def test_a_changed_window_is_published_once(service):
    publishing = asyncio.create_task(service._publish())
    assert await comes_true(lambda: service._producer.posted, 30)
    await asyncio.sleep(0.05)
    publishing.cancel()
    assert [window.requests for window in service._producer.posted] == [1]


async def test_after_a_pause_no_old_window_is_published(service, monkeypatch):
    begin_us = pauses.steady_us()
    monkeypatch.setattr(pauses, "steady_us", lambda: begin_us + 20_000_000)
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(service._publish(), 30)
    assert service._producer.posted == []


async def test_while_partitions_get_another_owner_nothing_is_published(service):
    service._ledger.ready = False
    publishing = asyncio.create_task(service._publish())
    await asyncio.sleep(0.05)
    publishing.cancel()
    assert service._producer.posted == []
