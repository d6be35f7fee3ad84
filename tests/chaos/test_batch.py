"""Test that all batch requests are completed although a service or the broker is killed meanwhile."""

import asyncio

import pytest

from services.bus import BusSettings
from tests.bench.batch_load import BatchLoad
from tests.support.tree import running_tree
from tests.support.waiting import until

REQUESTS, BESIDE = 48, 12
PATIENCE_S = 240.0


def job(tree, count, **fields):
    """Return a load of ``count`` requests. Answers are slow, so the batch load still runs when a process is killed."""
    bus = BusSettings(bootstrap=tree.kafka)
    return BatchLoad(bus, requests=count, window=24, tokens=60, stall_ms=10_000, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("struck", ["rails", "router", "generator", "broker"])
async def test_a_backlog_survives_the_kill_of_a_service(tmp_path, struck):
    with running_tree(
        tmp_path, "--engine", "simulated", governed=True, RAILBUS_SIM_BATCH="8", RAILBUS_SIM_TIME_SCALE="6"
    ) as tree:
        batch, beside = job(tree, REQUESTS), job(tree, BESIDE, lane="interactive")
        running = [asyncio.create_task(each.run()) for each in (batch, beside)]
        await until(lambda: len(batch.closed) >= REQUESTS // 4, "the job has begun", within_s=PATIENCE_S)
        assert batch.open, "the kill must find some of it open"
        await asyncio.to_thread(tree.kill, struck)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*running)
        assert batch.outcomes == {"completed": REQUESTS}, batch.reasons
        assert len(beside.closed) == BESIDE, "interactive requests have deadlines of their own, and an end"
