"""Test, in simulated time, that the adaptive draft length is as fast as the better one of two fixed lengths."""

import random

import pytest

from services.generator.engines.simulated.batch_scheduler import BatchScheduler, CostModel
from services.generator.engines.simulated.fault_script import FaultScript
from services.generator.engines.simulated.sequence import SimulatedSequence
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.pairing import SpeculationPair

PAIR = SpeculationPair(target=model("gemma-3-27b"), draft=model("gemma-3-4b"), gpu=gpu("h100"))


def seconds(batch, alpha, *, gamma, adaptive=False):
    """Return the simulated seconds for ``batch`` requests that arrive together and have answers of 300 tokens."""
    cost = CostModel(pair=PAIR, gamma=gamma, alpha=alpha, batch=256, budget=2_048, adaptive=adaptive)
    scheduler, now = BatchScheduler(cost), 0.0
    for seed in range(batch):
        rng = random.Random(seed)
        scheduler.add(
            SimulatedSequence(prompt=16, length=300, truncated=False, rng=rng, script=FaultScript(), arrived_ms=0.0)
        )
    while (plan := scheduler.plan(now)) is not None:
        now += plan.duration_ms
        for _ in scheduler.complete(plan, now):
            pass
    return now / 1e3


@pytest.mark.parametrize("batch", [1, 24, 72])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.85])
def test_it_is_as_fast_as_the_better_choice(batch, alpha):
    off, on = seconds(batch, alpha, gamma=0), seconds(batch, alpha, gamma=6)
    chosen = seconds(batch, alpha, gamma=6, adaptive=True)
    assert chosen <= min(off, on) * 1.05
    assert chosen <= off * 1.04


def test_each_is_the_better_one_somewhere():
    assert seconds(72, 0.5, gamma=6) > 1.2 * seconds(72, 0.5, gamma=0)
    assert seconds(1, 0.85, gamma=6) < 0.7 * seconds(1, 0.85, gamma=0)
