"""Test that the ledger acknowledges a batch of events only when the broker has all changes from this batch."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from services.books import TableChange
from services.ledger import changelog as module
from services.ledger import pauses
from services.ledger.changelog import Changelog
from services.ledger.pauses import PauseWatch
from services.runtime.errors import UnavailableError
from tests.support.waiting import comes_true


class Event:
    def __init__(self):
        self.acked = False

    def ack(self):
        self.acked = True


def read(partition, offset):
    return TableChange(b"%d/o/accounts" % partition, b"%d" % offset)


class Log:
    """A simulated log. ``pending`` has a future for each change. To acknowledge a change, set its future's result."""

    def __init__(self):
        self.sent = []
        self.pending = []

    async def send(self, partition, change):
        self.sent.append((partition, *change))
        self.pending.append(asyncio.get_running_loop().create_future())
        return self.pending[-1]


@asynccontextmanager
async def running(log):
    changelog = Changelog(log.send, PauseWatch(60_000_000))
    task = asyncio.create_task(changelog.run())
    try:
        yield changelog
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_batch_is_acknowledged_when_the_broker_has_all_of_it():
    log, events = Log(), [Event() for _ in range(4)]
    async with running(log) as changelog:
        await changelog.add(events[0], 0, [TableChange(b"0/e/a", b"1")], read(0, 1))
        await changelog.add(events[1], 1, [TableChange(b"1/e/b", b"1")], read(1, 1))
        await changelog.add(events[2], 0, [TableChange(b"0/e/a", b"2")], read(0, 2))
        await changelog.add(events[3], 0, [], read(0, 3))
        assert await comes_true(lambda: len(log.pending) == 4, 30)
        assert log.sent == [(0, b"0/e/a", b"2"), (0, *read(0, 3)), (1, b"1/e/b", b"1"), (1, *read(1, 1))]
        for each in log.pending[:3]:
            each.set_result(None)
        await asyncio.sleep(0.01)
        assert not any(event.acked for event in events)
        log.pending[3].set_result(None)
        await changelog.written()
        assert all(event.acked for event in events)


async def test_no_more_is_taken_than_one_batch_beside_the_one_that_is_written(monkeypatch):
    monkeypatch.setattr(module, "BATCH_EVENTS", 3)
    log, taken = Log(), []
    async with running(log) as changelog:

        async def take():
            for number in range(20):
                await changelog.add(Event(), 0, [TableChange(b"0/e/%d" % number, b"1")], read(0, number))
                taken.append(number)

        taking = asyncio.create_task(take())
        assert await comes_true(lambda: len(log.pending) == 4, 30)
        await asyncio.sleep(0.3)
        assert len(taken) <= 6
        while not taking.done() or not all(each.done() for each in log.pending):
            for each in log.pending:
                if not each.done():
                    each.set_result(None)
            await asyncio.sleep(0)
        await asyncio.wait_for(_complete(changelog, log), 30)
    assert sum(b"/e/" in key for _, key, _ in log.sent) == 20


async def test_a_refused_change_ends_the_writer_and_acknowledges_nothing():
    log, event = Log(), Event()
    changelog = Changelog(log.send, PauseWatch(60_000_000))
    task = asyncio.create_task(changelog.run())
    await changelog.add(event, 0, [TableChange(b"0/e/a", b"1")], read(0, 1))
    assert await comes_true(lambda: log.pending, 30)
    log.pending[0].set_exception(ConnectionError("away"))
    with pytest.raises(ConnectionError):
        await task
    assert not event.acked


async def _complete(changelog, log):
    waiting = asyncio.create_task(changelog.written())
    while not waiting.done():
        for each in log.pending:
            if not each.done():
                each.set_result(None)
        await asyncio.sleep(0.01)


async def test_a_writer_paused_for_longer_than_its_session_writes_nothing(monkeypatch):
    now = [0]
    monkeypatch.setattr(pauses, "steady_us", lambda: now[0])
    monkeypatch.setattr(module, "BATCH_S", 0.2)
    log, event = Log(), Event()
    changelog = Changelog(log.send, PauseWatch(10_000_000))
    task = asyncio.create_task(changelog.run())
    await changelog.add(event, 0, [TableChange(b"0/e/a", b"1")], read(0, 1))
    await asyncio.sleep(0.05)
    now[0] = 20_000_000
    with pytest.raises(UnavailableError):
        await task
    assert not log.sent
    assert not event.acked


async def test_a_writer_paused_while_it_had_nothing_to_write_writes_nothing(monkeypatch):
    now = [0]
    monkeypatch.setattr(pauses, "steady_us", lambda: now[0])
    log, event = Log(), Event()
    changelog = Changelog(log.send, PauseWatch(10_000_000))
    task = asyncio.create_task(changelog.run())
    await asyncio.sleep(0.01)
    now[0] = 20_000_000
    await changelog.add(event, 0, [TableChange(b"0/e/a", b"1")], read(0, 1))
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(task, 30)
    assert not log.sent


async def test_a_writer_paused_within_a_batch_writes_no_more_of_it(monkeypatch):
    now = [0]
    monkeypatch.setattr(pauses, "steady_us", lambda: now[0])
    log, event = Log(), Event()

    async def send(partition, change):
        now[0] += 20_000_000
        return await log.send(partition, change)

    changelog = Changelog(send, PauseWatch(10_000_000))
    task = asyncio.create_task(changelog.run())
    await changelog.add(event, 0, [TableChange(b"0/e/a", b"1")], read(0, 1))
    with pytest.raises(UnavailableError):
        await asyncio.wait_for(task, 30)
    assert len(log.sent) == 1
    assert not event.acked


async def test_a_long_restore_is_no_pause(monkeypatch):
    now = [0]
    monkeypatch.setattr(pauses, "steady_us", lambda: now[0])
    log, watch = Log(), PauseWatch(10_000_000)
    changelog = Changelog(log.send, watch)
    task = asyncio.create_task(changelog.run())
    now[0] = 90_000_000
    watch.restored()
    await changelog.add(Event(), 0, [TableChange(b"0/e/a", b"1")], read(0, 1))
    assert await comes_true(lambda: len(log.sent) == 2, 30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
