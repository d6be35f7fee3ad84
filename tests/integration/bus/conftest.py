import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop

from schemas.topics import STREAMS, Topic
from services.bus import BusSettings, Producer, ensure_topics
from tests.support.brokers import Broker
from tests.support.bus import any_role, copy_of

NewTopic = Callable[[], Awaitable[Topic]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop that the product runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def settings(embedded_broker: Broker) -> BusSettings:
    # No member is put out because the machine is busy, and one that could not say goodbye is within a test's patience.
    return BusSettings(bootstrap=embedded_broker.address, session_timeout_ms=15_000)


@pytest.fixture
def new_topic(settings: BusSettings) -> NewTopic:
    """Makes a stream log of this test's own."""

    async def make() -> Topic:
        topic = copy_of(STREAMS)
        await ensure_topics(settings, [topic])
        return topic

    return make


@pytest.fixture
def group() -> str:
    """The name of a group of this test's own."""
    return f"group-{random.getrandbits(64):x}"


@pytest.fixture
async def topic(new_topic: NewTopic) -> Topic:
    return await new_topic()


@pytest.fixture
async def producer(settings: BusSettings) -> AsyncIterator[Producer]:
    producer = Producer(settings, role=any_role(), name="test")
    await producer.start()
    yield producer
    await producer.stop()
