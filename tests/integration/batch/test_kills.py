"""kill -9 at any time, of the batch service and of the generator.

Every line has one result, and the results are those of an undisturbed run, byte for byte.

``RAILBUS_BATCH_KILLS`` says how many kills there are, ``RAILBUS_BATCH_SEED`` when they come.
"""

import asyncio
import os
import random
import signal

from schemas.batches import BatchProgress
from schemas.stream import Cutover
from tests.integration.batch.lab import BATCH_ID, BatchLab, lines, rows

KILLS = int(os.environ.get("RAILBUS_BATCH_KILLS", "3"))
SEED = os.environ.get("RAILBUS_BATCH_SEED", "")
LINES = 60 * max(KILLS, 5)
WINDOW = 16
SETTINGS = {
    "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "2000",
    "RAILBUS_BATCH_INSTANCE": "batch",
    "RAILBUS_SIM_TIME_SCALE": "0.8",  # slow enough that the kills come in the middle
}


async def job(folder, kills: int, rng: random.Random) -> tuple[bytes, list[str], int]:
    """Run the job with so many kills; return its results, the ids that were submitted, and the last epoch."""
    async with BatchLab.opened() as lab:
        lab.open_folder(folder)
        process = await lab.tree(**SETTINGS)
        await lab.submit(lines(LINES, model="simulated-n6"), window_open=WINDOW)
        for number in range(kills):
            await lab.until(lambda number=number: lab.done(BATCH_ID) >= LINES * (number + 0.3) / (kills + 1))
            await asyncio.sleep(rng.random() * 0.5)
            process.signal(signal.SIGKILL)
            await process.ended()
            process = lab.start(**lab.where, **SETTINGS)
        end = await lab.end(BATCH_ID, within_s=300)
        assert (end.outcome, end.totals.completed, end.totals.failed) == ("completed", LINES, 0)
        epochs = [event.epoch for event in lab.written(BatchProgress)]
        assert epochs == sorted(epochs)
        return lab.file(end.output_file), lab.submitted(), epochs[-1]


async def test_a_killed_service_takes_no_line_twice_and_loses_none(tmp_path):
    seed = SEED or str(random.randrange(10**6))
    print(f"RAILBUS_BATCH_SEED={seed}")
    undisturbed, _, _ = await job(tmp_path / "a", 0, random.Random(seed))
    killed, submitted, epoch = await job(tmp_path / "b", KILLS, random.Random(seed))
    assert killed == undisturbed
    assert [row["custom_id"] for row in rows(killed)] == [f"id-{n}" for n in range(LINES)]
    assert len(submitted) == len(set(submitted)) == LINES
    assert epoch > KILLS / 2, "the kills came after the end"


async def test_what_a_killed_generator_had_begun_is_begun_again(tmp_path):
    async with BatchLab.opened() as lab:
        lab.open_folder(tmp_path)
        await lab.start("services.router").ready()
        generator = lab.start("services.generator", **SETTINGS)
        await generator.ready()
        await lab.run(**lab.where, RAILBUS_BATCH_STALL_MS="10000", **SETTINGS)
        await lab.submit(lines(LINES, model="simulated-n6"), window_open=WINDOW)
        await lab.until(lambda: lab.done(BATCH_ID) >= LINES / 3)
        generator.signal(signal.SIGKILL)
        await generator.ended()
        await lab.start("services.generator", **SETTINGS).ready()
        end = await lab.end(BATCH_ID, within_s=120)
        assert (end.outcome, end.totals.completed, end.totals.failed) == ("completed", LINES, 0)
        assert 0 < len({event.request_id for event in lab.written(Cutover)}) <= WINDOW
        assert [row["custom_id"] for row in rows(lab.file(end.output_file))] == [f"id-{n}" for n in range(LINES)]
