"""Drives an engine: closed loops of a fixed shape, and open loops whose requests come whether it is ready or not."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence

from schemas.requests import Message, Sampling
from services.generator.bench import usage
from services.generator.bench.record import Record, Set
from services.generator.bench.workload import (
    WORDS,
    Cell,
    Stream,
    Workload,
    arrivals_s,
    prompt,
    prompts,
    shared_beginning,
)
from services.worker.engine import Engine, EngineError, Job


class Driver:
    """Asks an engine that was started.

    Args:
        engine: Started.
        workload: What to do.
    """

    def __init__(self, engine: Engine, workload: Workload) -> None:
        self._engine = engine
        self._workload = workload
        self._slots = asyncio.Semaphore(engine.capacity)
        self._until = time.monotonic() + workload.limit_s
        self._asked = 0
        # The simulated engine draws an answer's length by itself, unless the name of the model says one.
        length = f"-n{workload.output}" if engine.name == "simulated" else ""
        self._model = engine.resolve(f"{engine.model}{length}")

    @property
    def over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self._until

    async def warm_up(self) -> None:
        """One request that is not counted: what is loaded or compiled at first use is loaded then.

        Raises:
            EngineError: The engine cannot even do that.
        """
        record = await self._ask("Hello there." + prompt(16, self._draw("warm-up")), time.monotonic(), 0.0)
        if record.error is not None:
            raise EngineError("internal", f"the first request failed: {record.error}", retryable=False)

    async def cells(self, cells: Sequence[Cell]) -> list[list[Set]]:
        """The sets that time allowed, for each cell.

        Cells of equal prompts are asked the same texts, but for the first word: how much of a draft is kept is the
        text's more than the batch's, and behind another first word nothing fits that an engine remembers. The cells
        take turns, in proportion to their repeats, so that a slow spell of the machine falls on all of them.
        """
        draws = [(self._draw(f"{cell.batch}:{cell.prompt}"), self._draw(f"cells:{cell.prompt}")) for cell in cells]
        found: list[list[Set]] = [[] for _ in cells]
        turns = max((cell.repeats for cell in cells), default=0)
        for turn in range(turns):
            for cell, (own, common), sets in zip(cells, draws, found, strict=True):
                if turn * cell.repeats // turns < (turn + 1) * cell.repeats // turns and not self.over:
                    firsts = [own.choice(WORDS) + " " for _ in range(cell.batch)]
                    sets.append(await self._set([prompt(cell.prompt, common, beginning=first) for first in firsts]))
        return found

    async def _set(self, texts: Sequence[str]) -> Set:
        began, cpu = time.monotonic(), usage.cpu_seconds()
        requests = await asyncio.gather(*(self._ask(text, began, 0.0) for text in texts))
        spent, now = time.monotonic() - began, usage.cpu_seconds()
        return Set(requests=requests, cores=None if cpu is None or now is None else (now - cpu) / spent)

    async def stream(self, stream: Stream) -> list[Record]:
        """The requests that time allowed."""
        seed = self._workload.seed
        if stream.cache == "warm":
            primer = shared_beginning(stream.prompt, seed)
            await self._ask(prompt(stream.prompt, self._draw("primer"), beginning=primer), time.monotonic(), 0.0)
        began = time.monotonic()
        due = zip(prompts(stream, seed), arrivals_s(stream, seed), strict=True)
        return await self._as_they_come(due, began)

    async def _as_they_come(self, due: Iterable[tuple[str, float]], began: float) -> list[Record]:
        tasks: list[asyncio.Task[Record]] = []
        for text, at_s in due:
            await asyncio.sleep(max(0.0, began + at_s - time.monotonic()))
            if self.over:
                break
            tasks.append(asyncio.create_task(self._ask(text, began + at_s, at_s * 1e3)))
        return list(await asyncio.gather(*tasks))

    async def _ask(self, text: str, due: float, due_ms: float) -> Record:
        """One request, from the moment it is due; waiting for a slot of the engine is part of its time."""
        record = Record(due_ms=due_ms)
        try:
            async with asyncio.timeout(self._workload.request_s), self._slots:
                async for item in self._engine.generate(self._job(text)):
                    record.heard(item, (time.monotonic() - due) * 1e3)
        except EngineError as error:
            record.error = f"{error.error_class}: {error}"
        except TimeoutError:
            record.error = f"timeout: not over after {self._workload.request_s:g} s"
        record.total_ms = (time.monotonic() - due) * 1e3
        return record

    def _job(self, text: str) -> Job:
        self._asked += 1
        workload = self._workload
        name = f"bench-{workload.seed}-{self._asked}"
        return Job(
            request_id=name,
            run=name,
            model=self._model,
            messages=(Message(role="user", content=text),),
            sampling=Sampling(max_tokens=workload.output, temperature=workload.temperature, seed=workload.seed),
        )

    def _draw(self, what: str) -> random.Random:
        return random.Random(f"{self._workload.seed}:{what}")  # noqa: S311 - it must be repeatable
