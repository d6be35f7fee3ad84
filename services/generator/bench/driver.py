"""Run a benchmark workload on an engine."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence

from schemas.requests import Message, Sampling
from services.generator.bench import resources
from services.generator.bench.record import Repetition, RequestRecord
from services.generator.bench.workload import (
    WORDS,
    ClosedLoop,
    OpenLoop,
    SampleLoop,
    Workload,
    arrivals_s,
    prompt,
    prompts,
    shared_prefix,
)
from services.worker.engine import Engine, EngineError, Job


class Driver:
    def __init__(self, engine: Engine, workload: Workload) -> None:
        self._engine = engine
        self._workload = workload
        self._slots = asyncio.Semaphore(engine.capacity)
        self._until = time.monotonic() + workload.limit_s
        self._requests = 0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._until

    def restart_limit(self) -> None:
        """Let the workload's time limit count from now."""
        self._until = time.monotonic() + self._workload.limit_s

    async def warm_up(self) -> None:
        """Send one request that is not measured.

        Raises:
            EngineError: The request failed.
        """
        # Some engines load or compile during their first request.
        record = await self._request("Hello there." + prompt(16, self._rng("warm-up")), time.monotonic(), 0.0)
        if record.error is not None:
            raise EngineError("internal", f"the first request failed: {record.error}", retryable=False)

    async def cells(self, cells: Sequence[ClosedLoop]) -> list[list[Repetition]]:
        """Run closed loops, each with its number of repetitions.

        Return the results of each loop's repetitions, in the order of ``cells``.

        After the workload's time limit, no more repetitions start.
        """
        # Loops with equal prompt lengths use the same texts, because the acceptance rate depends more on the text than
        # on the batch size. Only the first word of each text differs, so that no prefix cache has hits.
        rngs = [(self._rng(f"{cell.batch}:{cell.prompt}"), self._rng(f"cells:{cell.prompt}")) for cell in cells]
        found: list[list[Repetition]] = [[] for _ in cells]
        turns = max((cell.repeats for cell in cells), default=0)
        # The repetitions of different loops alternate, so that a slow period of the machine affects all loops.
        for turn in range(turns):
            for cell, (own, common), sets in zip(cells, rngs, found, strict=True):
                if turn * cell.repeats // turns < (turn + 1) * cell.repeats // turns and not self.over:
                    firsts = [own.choice(WORDS) + " " for _ in range(cell.batch)]
                    sets.append(
                        await self._repetition([prompt(cell.prompt, common, beginning=first) for first in firsts])
                    )
        return found

    async def _repetition(self, texts: Sequence[str]) -> Repetition:
        began, cpu = time.monotonic(), resources.cpu_seconds()
        requests = await asyncio.gather(*(self._request(text, began, 0.0) for text in texts))
        spent, now = time.monotonic() - began, resources.cpu_seconds()
        return Repetition(requests=requests, cores=None if cpu is None or now is None else (now - cpu) / spent)

    async def stream(self, stream: OpenLoop) -> list[RequestRecord]:
        seed = self._workload.seed
        if stream.cache == "warm":
            primer = shared_prefix(stream.prompt, seed)
            await self._request(prompt(stream.prompt, self._rng("primer"), beginning=primer), time.monotonic(), 0.0)
        began = time.monotonic()
        due = zip(prompts(stream, seed), arrivals_s(stream, seed), strict=True)
        return await self._open_loop(due, began)

    async def _open_loop(self, due: Iterable[tuple[str, float]], began: float) -> list[RequestRecord]:
        tasks: list[asyncio.Task[RequestRecord]] = []
        for text, at_s in due:
            await asyncio.sleep(max(0.0, began + at_s - time.monotonic()))
            if self.over:
                break
            tasks.append(asyncio.create_task(self._request(text, began + at_s, at_s * 1e3)))
        return list(await asyncio.gather(*tasks))

    async def sample(self, loop: SampleLoop) -> list[RequestRecord]:
        began, found = time.monotonic(), []
        coming = iter(loop.prompts)

        async def client() -> None:
            for text in coming:  # all clients take their prompts from this one iterator
                if self.over:
                    return
                now = time.monotonic()
                found.append(await self._request(text, now, (now - began) * 1e3, output=loop.output))

        await asyncio.gather(*(client() for _ in range(min(loop.at_once, len(loop.prompts)))))
        return found

    async def _request(self, text: str, due: float, due_ms: float, *, output: int | None = None) -> RequestRecord:
        record = RequestRecord(due_ms=due_ms)
        try:
            async with asyncio.timeout(self._workload.request_s), self._slots:
                async for item in self._engine.generate(self._job(text, output)):
                    record.add(item, (time.monotonic() - due) * 1e3)
        except EngineError as error:
            record.error = f"{error.error_class}: {error}"
        except TimeoutError:
            record.error = f"timeout: not finished after {self._workload.request_s:g} s"
        record.total_ms = (time.monotonic() - due) * 1e3
        return record

    def _model(self, tokens: int) -> str:
        engine = self._engine
        # The suffix is a script that sets the length of the simulated answer.
        return engine.resolve(f"{engine.model}-n{tokens}" if engine.name == "simulated" else engine.model)

    def _job(self, text: str, output: int | None = None) -> Job:
        self._requests += 1
        workload = self._workload
        tokens = workload.output if output is None else output
        name = f"bench-{workload.seed}-{self._requests}"
        return Job(
            request_id=name,
            run=name,
            model=self._model(tokens),
            messages=(Message(role="user", content=text),),
            sampling=Sampling(max_tokens=tokens, temperature=workload.temperature, seed=workload.seed),
        )

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self._workload.seed}:{what}")  # noqa: S311 - it must be repeatable
