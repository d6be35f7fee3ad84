import asyncio
import contextlib
import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from services.generator.engines.simulated.batch_scheduler import BatchScheduler
from services.generator.engines.simulated.fault_script import FaultScript, parse_script
from services.generator.engines.simulated.sequence import OutputItem, SimulatedSequence, scripted_refusal
from services.generator.engines.simulated.settings import SimulatedSettings
from services.worker.engine import EngineError, EngineStats, EngineStep, GenerationResult, Job

CHARACTERS_PER_TOKEN: Final = 4
"""Number of characters that count as one token of a prompt, because prompts are not tokenised."""

MIN_TOKENS, MAX_TOKENS = 20, 120
"""Minimum and maximum length of an answer in tokens, if no script sets the length. The distribution is uniform."""


class _OutputQueue:
    __slots__ = ("items", "waiter")

    def __init__(self) -> None:
        self.items: deque[OutputItem] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: OutputItem) -> None:
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> OutputItem:
        while not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self.items.popleft()


class SimulatedEngine:
    def __init__(self, settings: SimulatedSettings) -> None:
        self.name = "simulated"
        self.model = settings.model
        self.capacity = settings.sim_batch
        self.preempts = True
        self._settings = settings
        self._script = settings.script()
        self._scheduler = BatchScheduler(settings.cost_model())
        self._outputs: dict[int, _OutputQueue] = {}
        self._work = asyncio.Event()
        self._dead: EngineError | None = None
        self._stepper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._stepper = asyncio.create_task(self._run_steps())
        self._stepper.add_done_callback(self._on_stepper_end)

    def resolve(self, model: str) -> str:
        """Return the name of the simulated model, followed by the fault script if ``model`` has one.

        Raises:
            EngineError: The model is unknown, or its script is invalid.
        """
        if model in {"default", self.model}:
            return self.model
        prefix = f"{self.model}-"
        if not model.startswith(prefix):
            raise EngineError(
                "bad_request",
                f"this model is not served here; served is {self.model!r}",
                retryable=False,
                param="model",
            )
        try:
            parse_script(model.removeprefix(prefix))
        except ValueError as error:
            raise EngineError(
                "bad_request", f"served is {self.model!r}, with a script: {error}", retryable=False, param="model"
            ) from None
        return model

    async def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield random words. The random number generator is seeded with the request's id and ``sampling.seed``."""
        if self._dead is not None:
            raise self._dead
        sequence = self._sequence(job)
        refusal = scripted_refusal(sequence.script)
        if refusal is not None:
            raise refusal
        output = self._outputs[id(sequence)] = _OutputQueue()
        self._scheduler.add(sequence)
        self._work.set()
        try:
            while True:
                item = await output.take()
                if isinstance(item, EngineError):
                    raise item
                yield item
                if isinstance(item, GenerationResult):
                    return
        finally:
            del self._outputs[id(sequence)]
            self._scheduler.remove(sequence)
            self._work.set()  # a waiting sequence may take the slot

    def stats(self) -> EngineStats:
        return EngineStats(running=self._scheduler.running, waiting=self._scheduler.waiting)

    async def close(self) -> None:
        if self._stepper is not None:
            self._stepper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stepper

    def _sequence(self, job: Job) -> SimulatedSequence:
        rng = random.Random(f"{job.request_id}:{job.sampling.seed}")  # noqa: S311 - it must be repeatable
        script = FaultScript()
        if job.model != self.model:
            script = parse_script(job.model.removeprefix(f"{self.model}-"))
        elif rng.random() < self._settings.sim_script_rate:
            script = self._script
        length = script.n if script.n is not None else rng.randint(MIN_TOKENS, MAX_TOKENS)
        characters = sum(len(message.content) for message in job.messages)
        return SimulatedSequence(
            prompt=max(1, math.ceil(characters / CHARACTERS_PER_TOKEN)),
            length=max(1, min(length, job.sampling.max_tokens)),
            truncated=length > job.sampling.max_tokens,
            rng=rng,
            script=script,
            arrived_ms=_now_ms(),
            batch=job.lane == "batch",
        )

    async def _run_steps(self) -> None:
        due_ms = _now_ms()
        while self._dead is None:
            plan = self._scheduler.plan(max(due_ms, _now_ms()))
            if plan is None:
                await self._wait_for_work()
                due_ms = _now_ms()
                continue
            due_ms += plan.duration_ms
            await asyncio.sleep(max(0.0, due_ms - _now_ms()) / 1e3)
            for sequence, item in self._scheduler.complete(plan, max(due_ms, _now_ms())):  # a timer may fire early
                if isinstance(item, EngineError) and item.error_class == "engine_dead":
                    self._die(item)
                    break
                output = self._outputs.get(id(sequence))
                if output is not None:
                    output.put(item)
            # If a busy host delays a step, all later steps are late too.
            due_ms = max(due_ms, _now_ms() - plan.duration_ms)

    async def _wait_for_work(self) -> None:
        wake_ms = self._scheduler.wake_ms()
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wake_ms is None else max(0.0, wake_ms - _now_ms()) / 1e3):
                await self._work.wait()

    def _on_stepper_end(self, stepper: asyncio.Task[None]) -> None:
        if not stepper.cancelled() and (error := stepper.exception()) is not None:
            self._die(
                EngineError("engine_dead", f"the simulated engine failed ({type(error).__name__})", retryable=True)
            )

    def _die(self, error: EngineError) -> None:
        self._dead = error
        for output in self._outputs.values():
            output.put(error)


def _now_ms() -> float:
    return time.monotonic() * 1e3
