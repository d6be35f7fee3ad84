import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.edge.delivery import client_writer, subscription
from services.edge.http import connections, websockets
from services.edge.log import partition_follower
from services.edge.requests import request_service
from tests.integration.edge.lab import PATIENCE_S, EdgeLab, open_lab
from tests.support.brokers import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start an embedded broker for the edge tests alone, so that no other test writes to the topics of the edges."""
    broker = Broker("embedded", tmp_path_factory.mktemp("edge") / "data")
    broker.start()
    yield broker
    if broker.is_running():
        broker.stop()


@pytest.fixture(autouse=True)
def patient_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an edge be ready even if the broker answers the readiness check late, as on a busy machine."""
    monkeypatch.setattr(partition_follower, "PROBE_S", PATIENCE_S)


@pytest.fixture
def patient_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a stream last a minute beyond its total deadline. On a busy machine, the usual 2 s are too short."""
    for module in (subscription, request_service):
        monkeypatch.setattr(module, "EXPIRY_MARGIN_US", int(PATIENCE_S * 1e6))


@pytest.fixture
def patient_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the edge drops a client, let the client read for another minute, so that it still gets the reason."""
    for module in (client_writer, websockets, connections):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(websockets, "HEARTBEAT_S", 2 * PATIENCE_S)


@pytest.fixture
async def lab(broker: Broker) -> AsyncIterator[EdgeLab]:
    async with open_lab(broker.address) as it:
        yield it


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    """Write a file with the API keys ``k-a`` of the tenant acme and ``k-b`` of the tenant bolt. Return its path."""
    file = tmp_path / "keys.toml"
    lines = [f'{hashlib.sha256(key).hexdigest()} = "{tenant}"' for key, tenant in ((b"k-a", "acme"), (b"k-b", "bolt"))]
    file.write_text("[keys]\n" + "\n".join(lines))
    return str(file)
