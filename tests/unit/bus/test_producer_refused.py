"""Test that a running producer raises an error if the broker does not let it write any more."""

import asyncio

import pytest
from aiokafka.errors import TopicAuthorizationFailedError

from services.bus import BusSettings
from services.bus.write import producer as producer_module
from services.bus.write.producer import Producer
from services.runtime.errors import UserError


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
