"""Test the benchmark driver: which prompts it sends, how many at once, and its time limit."""

import asyncio
import itertools

from services.generator.bench.driver import Driver
from services.generator.bench.session import LOAD_LIMIT_S, EngineSession, RunLoad
from services.generator.bench.workload import ClosedLoop, SampleLoop, Workload
from services.generator.engines import make
from services.worker.engine import EngineStep, GenerationResult


class Listener:
    """An engine that generates one word and records its prompts."""

    name, model, capacity, preempts = "listener", "none", 8, False

    def __init__(self):
        self.asked = []

    def resolve(self, model):
        return model

    async def generate(self, job):
        self.asked.append(job.messages[0].content)
        yield EngineStep(text="word", tokens=1)
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


async def test_a_sample_sends_each_prompt_once_and_never_more_at_once():
    class Counter(Listener):
        open = most = 0

        async def generate(self, job):
            self.open += 1
            self.most = max(self.most, self.open)
            await asyncio.sleep(0)
            assert job.sampling.max_tokens == 5
            async for item in super().generate(job):
                yield item
            self.open -= 1

    loop = SampleLoop(prompts=tuple(f"p{number}" for number in range(20)), at_once=3, output=5)
    workload = Workload(
        engine="listener", cells=(), streams=(), output=2, temperature=0, seed=3, request_s=9, limit_s=60,
        samples=(loop,),
    )  # fmt: skip
    engine = Counter()
    found = await Driver(engine, workload).sample(loop)
    assert sorted(engine.asked) == sorted(loop.prompts)
    assert engine.most == 3
    assert len(found) == 20
    assert all(each.error is None and each.steps for each in found)


async def test_an_engine_that_stays_for_hours_is_still_measured() -> None:
    engine = make("simulated", {"RAILBUS_SIM_TIME_SCALE": "0.05"})
    await engine.start()
    long_ago = EngineSession(engine)
    long_ago._driver._until -= LOAD_LIMIT_S
    found = await long_ago.do(RunLoad(SampleLoop(prompts=("a",) * 8, at_once=2, output=4)))
    await engine.close()
    assert len(found["requests"]) == 8
