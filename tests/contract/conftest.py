"""The brokers under test: one process of each kind for the session, and another for tests that restart it."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.lab import KafkaClients, open_clients
from tests.support.brokers import Broker, BrokerUnavailable


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def kind(request: pytest.FixtureRequest) -> str:
    """Which broker: each test runs on both."""
    return request.param


@pytest.fixture(scope="session")
def broker(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker that all tests of the session share."""
    yield from running_broker(Broker(kind, tmp_path_factory.mktemp(kind) / "data"))


@pytest.fixture(scope="module")
def module_broker(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from running_broker(Broker(kind, tmp_path_factory.mktemp(kind) / "data"))


@pytest.fixture
def own_broker(module_broker: Broker) -> Broker:
    """A running broker that the tests of one module may stop, kill and start again."""
    if not module_broker.is_running():
        module_broker.start()
    return module_broker


@pytest.fixture
async def lab(broker: Broker) -> AsyncIterator[KafkaClients]:
    """This test's topics and clients on the shared broker."""
    async with open_clients(broker.address, broker.log) as opened:
        yield opened
    assert broker.is_running(), f"the broker did not survive this test: {broker.said()}"


def running_broker(broker: Broker) -> Iterator[Broker]:
    """Starts the broker, yields it, stops it; skips the test where the broker cannot run."""
    try:
        broker.start()
    except BrokerUnavailable as missing:
        if os.environ.get("RAILBUS_REQUIRE_KAFKA") == "1":
            raise
        pytest.skip(f"{broker.kind}: {missing}")
    try:
        yield broker
    finally:
        if broker.is_running():
            status = broker.stop()
            assert status == 0, f"{broker.kind} broker ended with {status}: {broker.said()}"
