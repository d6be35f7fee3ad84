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
    """Run the tests of the bus on uvloop, the event loop of the product."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def settings(embedded_broker: Broker) -> BusSettings:
    # So long that no session ends because the machine is busy, and so short that a test can wait until a session ends.
    return BusSettings(bootstrap=embedded_broker.address, session_timeout_ms=15_000)


@pytest.fixture
def new_topic(settings: BusSettings) -> NewTopic:
    """Return a function that creates a topic with the stream log's settings, for this test only."""

    async def make() -> Topic:
        topic = copy_of(STREAMS)
        await ensure_topics(settings, [topic])
        return topic

    return make


@pytest.fixture
def group() -> str:
    """Return the name of a consumer group that only this test uses."""
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
