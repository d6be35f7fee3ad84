from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.brokers import Broker
from tests.integration.edge.stage import Stage, opened


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An embedded broker for these tests alone: edges share the product's topics."""
    broker = Broker("embedded", tmp_path_factory.mktemp("edge") / "data")
    broker.start()
    yield broker
    if broker.is_running():
        broker.stop()


@pytest.fixture
async def stage(broker: Broker) -> AsyncIterator[Stage]:
    async with opened(broker.address) as it:
        yield it
