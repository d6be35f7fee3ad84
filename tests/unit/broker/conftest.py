import pytest

from services.broker.service import BrokerService


@pytest.fixture
async def broker():
    """Yield a broker that runs in the test's event loop and keeps everything in memory."""
    running = BrokerService(min_session_ms=1000)
    await running.start()
    yield running
    await running.stop()
