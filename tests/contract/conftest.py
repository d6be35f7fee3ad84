"""Fixtures with the brokers under test.

For each kind of broker, the tests of the whole session share one process. But a module whose tests restart the broker
has a process of its own.
"""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.lab import KafkaClients, open_clients
from tests.support.brokers import Broker, BrokerUnavailable


@pytest.fixture(scope="session", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of the broker. Each test that needs a broker runs once for each kind."""
    return request.param


@pytest.fixture(scope="session")
def broker(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a running broker that all tests of the session share."""
    yield from running_broker(Broker(kind, tmp_path_factory.mktemp(kind) / "data"))


@pytest.fixture(scope="module")
def module_broker(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    yield from running_broker(Broker(kind, tmp_path_factory.mktemp(kind) / "data"))


@pytest.fixture
def own_broker(module_broker: Broker) -> Broker:
    """Return a running broker that the tests of one module may stop, kill and start again."""
    if not module_broker.is_running():
        module_broker.start()
    return module_broker


@pytest.fixture
async def lab(broker: Broker) -> AsyncIterator[KafkaClients]:
    """Yield this test's clients of the shared broker, and close them after the test."""
    async with open_clients(broker.address, broker.log) as opened:
        yield opened
    assert broker.is_running(), f"the broker did not survive this test: {broker.said()}"


def running_broker(broker: Broker) -> Iterator[Broker]:
    """Start the broker, yield it, and stop it. If the broker cannot run here, skip the test."""
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
