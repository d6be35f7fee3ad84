import pytest

from tests.integration.safety.lab import SafetyLab


@pytest.fixture
async def lab():
    async with SafetyLab.opened() as it:
        yield it
