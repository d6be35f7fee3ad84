import pytest

from tests.integration.generator.lab import GeneratorLab


@pytest.fixture
async def lab():
    async with GeneratorLab.opened() as it:
        yield it
