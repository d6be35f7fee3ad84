import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.edge.lab import EdgeLab, open_lab
from tests.support.brokers import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """An embedded broker for these tests alone: edges share the product's topics."""
    broker = Broker("embedded", tmp_path_factory.mktemp("edge") / "data")
    broker.start()
    yield broker
    if broker.is_running():
        broker.stop()


@pytest.fixture
async def lab(broker: Broker) -> AsyncIterator[EdgeLab]:
    async with open_lab(broker.address) as it:
        yield it


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    """A file of the keys ``k-a`` of the tenant acme and ``k-b`` of bolt."""
    file = tmp_path / "keys.toml"
    lines = [f'{hashlib.sha256(key).hexdigest()} = "{tenant}"' for key, tenant in ((b"k-a", "acme"), (b"k-b", "bolt"))]
    file.write_text("[keys]\n" + "\n".join(lines))
    return str(file)
