import pytest

from tests.integration.safety.harness import opened


@pytest.fixture
async def lab():
    async with opened() as it:
        yield it
