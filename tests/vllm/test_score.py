"""Test the log-probabilities that ``railbus tune`` compares.

They are repeatable, and each token except the first has one.
"""

import asyncio

import pytest

from services.generator.engines import make
from services.worker.engine import ScoringEngine
from tests.vllm.models import sentence

PATIENCE_S = 300
WORDS = 24


@pytest.fixture
async def engine(models, settings):
    it = make("vllm", {**settings, "RAILBUS_MODEL_PATH": str(models["target"])})
    await it.start()
    yield it
    await it.close()


async def test_a_text_has_one_score(engine):
    assert isinstance(engine, ScoringEngine)
    async with asyncio.timeout(PATIENCE_S):
        first, again = await engine.score(sentence(3, WORDS)), await engine.score(sentence(3, WORDS))
        half = await engine.score(sentence(3, WORDS // 2))
    assert first.tokens == WORDS - 1
    assert first.nats == pytest.approx(again.nats, rel=1e-4)
    assert half.tokens == WORDS // 2 - 1
    assert 0 < half.nats < first.nats
