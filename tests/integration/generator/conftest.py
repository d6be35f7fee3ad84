import pytest

from tests.integration.generator.lab import opened


@pytest.fixture
async def lab():
    async with opened() as it:
        yield it
