from collections.abc import AsyncIterator

import pytest

from tests.integration.router.lab import RouterLab


@pytest.fixture
async def lab() -> AsyncIterator[RouterLab]:
    async with RouterLab.opened() as it:
        yield it
