import pytest

from services.broker.service import BrokerService


@pytest.fixture
async def broker():
    """A broker in the test's own event loop, everything in memory."""
    running = BrokerService(min_session_ms=1000)
    await running.start()
    yield running
    await running.stop()
