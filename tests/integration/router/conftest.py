from collections.abc import AsyncIterator

import pytest

from tests.integration.router.harness import Lab, opened


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with opened() as it:
        yield it
