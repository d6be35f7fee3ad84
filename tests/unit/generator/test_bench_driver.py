"""Closed loops use the same texts at every batch size, so that only the batch size differs."""

import itertools

from services.generator.bench.driver import Driver
from services.generator.bench.workload import ClosedLoop, Workload
from services.worker.engine import GenerationResult, Step


class Listener:
    """An engine that generates one word and records its prompts."""

    name, model, capacity = "listener", "none", 8

    def __init__(self):
        self.asked = []

    def resolve(self, model):
        return model

    async def generate(self, job):
        self.asked.append(job.messages[0].content)
        yield Step(text="word", tokens=1)
        yield GenerationResult(finish_reason="stop")


async def test_cells_of_equal_prompts_differ_in_the_first_word_only():
    cells = (
        ClosedLoop(batch=1, prompt=40, repeats=4),
        ClosedLoop(batch=2, prompt=40, repeats=2),
        ClosedLoop(batch=4, prompt=40, repeats=1),
    )
    workload = Workload(
        engine="listener", cells=cells, streams=(), output=2, temperature=0, seed=3, request_s=9, limit_s=60
    )
    engine = Listener()
    sets = await Driver(engine, workload).cells(cells)
    assert [len(each) for each in sets] == [4, 2, 1]
    # Turns: batch 1, 1 and 2, 1, then all three.
    order = [1, 1, 2, 1, 1, 2, 4]
    ends = list(itertools.accumulate(order))
    by_batch = {1: [], 2: [], 4: []}
    for batch, end in zip(order, ends, strict=True):
        by_batch[batch] += engine.asked[end - batch : end]
    rests = {batch: [text.split(" ", 1)[1] for text in texts] for batch, texts in by_batch.items()}
    assert rests[1] == rests[2] == rests[4]
    assert len(set(rests[1])) == 4
    firsts = [tuple(text.split(" ", 1)[0] for text in texts) for texts in by_batch.values()]
    assert len(set(firsts)) == 3
