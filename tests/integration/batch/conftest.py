"""A fixture with a ``BatchLab`` for each test."""

import pytest

from tests.integration.batch.lab import BatchLab


@pytest.fixture
async def lab(tmp_path):
    async with BatchLab.opened() as lab:
        lab.open_folder(tmp_path / "batch")
        yield lab
