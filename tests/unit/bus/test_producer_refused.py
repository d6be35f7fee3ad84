"""Test that a running producer raises an error if the broker does not let it write, and that it can be aborted."""

import asyncio

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from schemas.stream import Cleared
from schemas.topics import STREAMS
from services.bus import BusSettings, EventRejected, NotAcknowledged
from services.bus.write import producer as producer_module
from services.bus.write.producer import Producer
from services.runtime.errors import UnavailableError, UserError
from tests.support.waiting import until
from tests.unit.safety.world import RunWriter


class Client:
    def create_batch(self):
        raise AssertionError("nothing is written")


async def test_a_producer_that_the_broker_refuses_later_says_so(monkeypatch):
    opened = []

    async def open_once(*_):
        if opened:
            raise UserError("generator may not write to railbus.streams")
        opened.append(Client())
        return opened[0]

    async def close(_):
        pass

    monkeypatch.setattr(producer_module, "open_producer", open_once)
    monkeypatch.setattr(producer_module, "close_producer", close)
    producer = Producer(BusSettings(), role="generator")
    await producer.start()
    watching = asyncio.create_task(producer.watch())
    await asyncio.sleep(0)
    assert not watching.done()
    producer._fail(TopicAuthorizationFailedError())
    with pytest.raises(UserError, match=r"may not write to railbus\.streams"):
        async with asyncio.timeout(5):
            await watching
    await producer.stop()


class Batch:
    def append(self, **_):
        pass

    def record_count(self):
        return 1


class RefusingClient:
    """A simulated client of aiokafka that refuses batches, before they are sent or afterwards. ``go_on`` lets it."""

    def __init__(self, *, before):
        self.before, self.batches, self.go_on = before, 0, asyncio.Event()

    def create_batch(self):
        return Batch()

    async def send_batch(self, batch, topic, *, partition):
        self.batches += 1
        if not self.before:
            return asyncio.create_task(self._refuse())
        return await self._refuse()

    async def _refuse(self):
        await self.go_on.wait()
        raise TopicAuthorizationFailedError


@pytest.mark.parametrize("before", [True, False])
async def test_an_aborted_producer_sends_nothing_more_and_is_closed(before, monkeypatch):
    client, closed = RefusingClient(before=before), []

    async def open_client(*_):
        return client

    async def close(held):
        closed.append(held)

    def cleared(seq):
        return Cleared(**RunWriter().voice, seq=seq, policy_version="v")

    monkeypatch.setattr(producer_module, "open_producer", open_client)
    monkeypatch.setattr(producer_module, "close_producer", close)
    producer = Producer(BusSettings(), role="safety")
    await producer.start()
    refused = await producer.post(STREAMS, cleared(0))
    refused.add_done_callback(lambda _: producer.abort(UnavailableError("refused")))
    await until(lambda: client.batches)
    later = await producer.post(STREAMS, cleared(1))
    client.go_on.set()
    with pytest.raises(EventRejected):
        await refused
    with pytest.raises(NotAcknowledged, match="refused"):
        await later
    with pytest.raises(UnavailableError, match="refused"):
        await producer.post(STREAMS, cleared(2))
    await asyncio.sleep(0.05)
    await producer.stop()
    assert (client.batches, closed) == (1, [client])
