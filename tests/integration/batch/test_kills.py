"""Test that jobs survive ``kill -9`` of the batch service or of the generator at any time.

Each line gets exactly one result. If the batch service is killed, the results are byte for byte those of an undisturbed
run.

``RAILBUS_BATCH_KILLS`` is the number of kills. ``RAILBUS_BATCH_SEED`` determines when they happen.
"""

import asyncio
import os
import random
import signal

from schemas.batches import BatchProgress
from schemas.stream import Cutover
from tests.integration.batch.lab import BATCH_ID, BatchLab, lines, rows
from tests.support.edge_answers import AnswerWriter

KILLS = int(os.environ.get("RAILBUS_BATCH_KILLS", "3"))
SEED = os.environ.get("RAILBUS_BATCH_SEED", "")
LINES = 60 * max(KILLS, 5)
WINDOW = 16
SETTINGS = {
    "RAILBUS_KAFKA_SESSION_TIMEOUT_MS": "2000",
    "RAILBUS_BATCH_INSTANCE": "batch",
    "RAILBUS_SIM_TIME_SCALE": "0.8",
}


async def job(folder, kills: int, rng: random.Random) -> tuple[bytes, list[str], int]:
    """Run a job, and kill the batch service ``kills`` times.

    Return the results, the ids of the submitted requests and the last epoch. Each takeover of the job raises the epoch.
    """
    async with BatchLab.opened() as lab:
        lab.open_folder(folder)
        process = await lab.tree(**SETTINGS)
        # So slow that the kills come in the middle, even if the machine stalls for a few seconds before each.
        await lab.submit(lines(LINES, model="simulated-n6-slow500"), window_open=WINDOW)
        for number in range(kills):
            share = (number + 0.3) / (kills + 1)
            await lab.until(lambda share=share: lab.done(BATCH_ID) >= LINES * share, within_s=120)
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
        await lab.submit(lines(LINES, model="simulated-n60"), window_open=WINDOW)  # always some of them begun
        await lab.until(lambda: lab.done(BATCH_ID) >= LINES / 3, within_s=120)
        generator.signal(signal.SIGKILL)
        await generator.ended()
        await lab.start("services.generator", **SETTINGS).ready()
        end = await lab.end(BATCH_ID, within_s=120)
        assert (end.outcome, end.totals.completed, end.totals.failed) == ("completed", LINES, 0)
        assert 0 < len({event.request_id for event in lab.written(Cutover)}) <= WINDOW
        assert [row["custom_id"] for row in rows(lab.file(end.output_file))] == [f"id-{n}" for n in range(LINES)]


class WideLab(BatchLab):
    """A lab whose topics have many partitions. A batch service needs some time until it follows all of them."""

    partitions = 32


async def test_answers_that_go_on_during_a_takeover_are_folded_whole(tmp_path):
    count = 24
    async with WideLab.opened() as lab:
        lab.open_folder(tmp_path)
        settings = SETTINGS | {"RAILBUS_INPUT_GATE": "off", "RAILBUS_OUTPUT_CHECK": "off"}
        first = await lab.run(**lab.where, **settings)
        await lab.submit(lines(count), window_open=count)
        await lab.until(lambda: len(lab.submitted()) == count)
        answers = [AnswerWriter(request_id, "acme") for request_id in lab.submitted()]
        await lab.send(*(answer.started() for answer in answers))
        first.signal(signal.SIGKILL)
        await first.ended()
        second = lab.start(**lab.where, **settings)
        ready = asyncio.create_task(second.ready())
        said = [[] for _ in answers]

        def taken_over():
            return max((event.epoch for event in lab.written(BatchProgress)), default=0) == 2

        after = 0
        while after < 300:  # also some after the takeover: the service reads it on the log, then the answers
            after += taken_over()
            for each in said:
                each.append(f"{len(each)} ")
            chunks = [answer.chunk(each[-1]) for answer, each in zip(answers, said, strict=True)]
            await asyncio.gather(*(lab.send(chunk) for chunk in chunks))
        await ready
        await lab.send(*(event for answer in answers for event in (answer.finished(), answer.closed())))
        end = await lab.end(BATCH_ID)
        texts = [row["response"]["body"]["choices"][0]["message"]["content"] for row in rows(lab.file(end.output_file))]
        assert texts == ["".join(each) for each in said]
