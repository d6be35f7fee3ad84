"""Test that a job completes although the broker loses the newest records of the stream log and reuses their offsets."""

import asyncio
import shutil
from pathlib import Path

from schemas.batches import BatchProgress
from schemas.topics import STREAMS
from services.bus import Producer
from tests.integration.batch.lab import BATCH_ID, BatchLab, lines, rows
from tests.support.bus import any_role
from tests.support.edge_answers import AnswerWriter

COUNT = 8


async def test_the_end_of_every_line_is_seen_after_the_log_lost_records(tmp_path):
    async with BatchLab.opened(keep_log=True) as lab:
        lab.open_folder(tmp_path / "batch")
        await lab.run(**lab.where)
        await lab.submit(lines(COUNT), window_open=COUNT)
        await lab.until(lambda: len(lab.submitted()) == COUNT)
        answers = [AnswerWriter(request_id, "acme") for request_id in lab.submitted()]
        await lab.send(*(answer.started() for answer in answers))
        topics = Path(lab.broker._data[1]) / "topics"
        kept = [each.name for each in topics.iterdir() if each.name.startswith(STREAMS.name)]
        assert kept
        shutil.copytree(topics, tmp_path / "earlier")
        for number in range(5):
            await lab.send(*(answer.chunk(f"lost {number} ") for answer in answers[:-1]))
        last = answers[-1]
        await lab.send(last.chunk("an answer"), last.finished(), last.closed())
        await lab.until(lambda: lab.done(BATCH_ID) == 1)  # so the service has read the other events, too

        await asyncio.to_thread(lab.broker.kill)
        for name in kept:
            shutil.rmtree(topics / name)
            shutil.copytree(tmp_path / "earlier" / name, topics / name)
        await asyncio.to_thread(lab.broker.start)
        await lab.until(lambda: max(event.epoch for event in lab.written(BatchProgress)) == 2)

        producer = Producer(lab.bus, role=any_role(), name="new")  # it knows nothing of what was lost
        await producer.start()
        for answer in answers:
            answer.seq = answer.start = 0
            for event in (answer.chunk("a later answer"), answer.finished(), answer.closed()):
                await producer.send(STREAMS, event)
        await producer.stop()
        end = await lab.end(BATCH_ID)
        assert (end.outcome, end.totals.completed, end.totals.failed) == ("completed", COUNT, 0)
        bodies = [row["response"]["body"] for row in rows(lab.file(end.output_file))]
        texts = [body["choices"][0]["message"]["content"] for body in bodies]
        # The result of the last one was noted before the loss, and stays.
        assert sorted(texts) == ["a later answer"] * (COUNT - 1) + ["an answer"]
