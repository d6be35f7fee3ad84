"""Gamma that follows load and acceptance, on the simulated machine in its own time: as fast as the better choice."""

import random

import pytest

from services.generator.engines.script import Script
from services.generator.engines.sequence import Sequence
from services.generator.engines.simulation import Machine, Scheduler
from services.physics.gpus import gpu
from services.physics.models import model
from services.physics.pairing import Pair

PAIR = Pair(target=model("gemma-3-27b"), draft=model("gemma-3-4b"), gpu=gpu("h100"))


def seconds(batch, alpha, *, gamma, adaptive=False):
    """Until ``batch`` answers of 300 tokens that came together are over."""
    machine = Machine(pair=PAIR, gamma=gamma, alpha=alpha, batch=256, budget=2_048, adaptive=adaptive)
    scheduler, now = Scheduler(machine), 0.0
    for seed in range(batch):
        draw = random.Random(seed)
        scheduler.add(Sequence(prompt=16, length=300, cut=False, draw=draw, script=Script(), arrived_ms=0.0))
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
    assert seconds(1, 0.85, gamma=6) < 0.6 * seconds(1, 0.85, gamma=0)
