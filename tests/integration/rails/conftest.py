import pytest

from tests.integration.rails.harness import RedisServer, opened


@pytest.fixture
async def lab():
    async with opened() as it:
        yield it


@pytest.fixture
def redis_server():
    server = RedisServer()
    yield server
    server.kill()
