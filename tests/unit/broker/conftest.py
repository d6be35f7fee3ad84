import pytest

from services.broker.server import EmbeddedBroker


@pytest.fixture
async def broker():
    """A broker in the test's own event loop, everything in memory."""
    running = EmbeddedBroker(min_session_ms=1000)
    await running.start()
    yield running
    await running.stop()
