"""Test that jobs are completed although a batch service is paused for longer than its session timeout.

During the pause, a second batch service takes the job over. When the pause ends, the second service is dead in one
test, and still runs in the other test.
"""

import signal
import time

import pytest

from schemas.batches import BatchProgress
from services.jobs.ids import new_batch_id
from tests.integration.batch.lab import BATCH_ID, BatchLab, lines

SETTINGS = {"RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "2000", "RAILBUS_SIM_TIME_SCALE": "0.8"}
COUNT = 120
SECOND_ID = new_batch_id(int(time.time()) * 1000, 54321)


def epoch(lab, batch_id: str) -> int:
    return max((event.epoch for event in lab.written(BatchProgress) if event.batch_id == batch_id), default=0)


@pytest.fixture
async def taken_over(lab):
    """Pause a batch service, and start another one, which takes the job over. Return the processes of both."""
    stopped = await lab.tree(**SETTINGS)
    await lab.submit(lines(COUNT, model="simulated-n6-slow500"), window_open=8)
    await lab.until(lambda: lab.done(BATCH_ID) >= 8, within_s=60)
    stopped.signal(signal.SIGSTOP)
    second = lab.start(**lab.where, **SETTINGS)
    await second.ready()
    await lab.until(lambda: epoch(lab, BATCH_ID) == 2, within_s=60)
    return stopped, second


async def completed(lab: BatchLab, batch_id: str) -> None:
    end = await lab.end(batch_id)
    assert (end.outcome, end.totals.completed, end.totals.failed) == ("completed", COUNT, 0)


async def test_a_service_takes_its_job_back_after_another_one(lab, taken_over):
    stopped, second = taken_over
    second.signal(signal.SIGKILL)
    await second.ended()
    stopped.signal(signal.SIGCONT)
    await completed(lab, BATCH_ID)


async def test_a_new_job_is_run_though_a_removed_service_sees_it_too(lab, taken_over):
    stopped, _ = taken_over
    await lab.submit(lines(COUNT, model="simulated-n6-slow500"), batch_id=SECOND_ID, window_open=8)
    await lab.until(lambda: epoch(lab, SECOND_ID) == 1, within_s=60)
    stopped.signal(signal.SIGCONT)
    await completed(lab, SECOND_ID)
    await completed(lab, BATCH_ID)
