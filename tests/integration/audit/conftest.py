from collections.abc import AsyncIterator

import pytest

from tests.integration.audit.lab import ArchiveLab


@pytest.fixture
async def lab(tmp_path) -> AsyncIterator[ArchiveLab]:
    async with ArchiveLab.opened() as it:
        it.folder = tmp_path
        yield it
