import pytest

from tests.integration.rails.lab import RailsLab, RedisServer


@pytest.fixture
async def lab():
    async with RailsLab.opened() as it:
        yield it


@pytest.fixture
def redis_server():
    server = RedisServer()
    yield server
    server.kill()
