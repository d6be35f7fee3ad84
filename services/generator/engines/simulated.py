"""An engine that costs nothing: clocked by the roofline, it says words. For load and fault tests."""

import asyncio
import contextlib
import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

from services.generator.engines.script import Script, parse
from services.generator.engines.sequence import Item, Sequence, refuse
from services.generator.engines.simulated_settings import SimulatedSettings
from services.generator.engines.simulation import Scheduler
from services.worker.engine import Done, EngineError, EngineStats, Job, Step

CHARACTERS_PER_TOKEN: Final = 4
"""Prompts are not tokenised, only measured."""

SHORTEST, LONGEST = 20, 120
"""Tokens of an answer whose script says nothing of it, drawn evenly."""


class _Listener:
    """Where one execution's items are put and taken. Bounded by the answer's own length."""

    __slots__ = ("items", "waiter")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def take(self) -> Item:
        while not self.items:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self.items.popleft()


class SimulatedEngine:
    """Engine ``simulated``. One task moves the whole batch from step to step."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self.name = "simulated"
        self.model = settings.model
        self.capacity = settings.sim_batch
        self._settings = settings
        self._script = settings.script()
        self._scheduler = Scheduler(settings.machine())
        self._listeners: dict[int, _Listener] = {}
        self._work = asyncio.Event()
        self._dead: EngineError | None = None
        self._clock: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the clock."""
        self._clock = asyncio.create_task(self._tick())
        self._clock.add_done_callback(self._clock_ended)

    def resolve(self, model: str) -> str:
        """``default``, our name, or our name with a script behind it.

        Raises:
            EngineError: Something else, or a script that is not understood.
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
            parse(model.removeprefix(prefix))
        except ValueError as error:
            raise EngineError(
                "bad_request", f"served is {self.model!r}, with a script: {error}", retryable=False, param="model"
            ) from None
        return model

    async def generate(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """Words, at the simulated machine's pace; the same request id and seed give the same words."""
        if self._dead is not None:
            raise self._dead
        sequence = self._sequence(job)
        refused = refuse(sequence.script)
        if refused is not None:
            raise refused
        listener = self._listeners[id(sequence)] = _Listener()
        self._scheduler.add(sequence)
        self._work.set()
        try:
            while True:
                item = await listener.take()
                if isinstance(item, EngineError):
                    raise item
                yield item
                if isinstance(item, Done):
                    return
        finally:
            del self._listeners[id(sequence)]
            self._scheduler.remove(sequence)

    def stats(self) -> EngineStats:
        """Answers in the batch and before it."""
        return EngineStats(running=self._scheduler.running, waiting=self._scheduler.waiting)

    async def close(self) -> None:
        """Stops the clock."""
        if self._clock is not None:
            self._clock.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock

    def _sequence(self, job: Job) -> Sequence:
        draw = random.Random(f"{job.request_id}:{job.sampling.seed}")  # noqa: S311 - it must be repeatable
        script = Script()
        if job.model != self.model:
            script = parse(job.model.removeprefix(f"{self.model}-"))
        elif draw.random() < self._settings.sim_script_rate:
            script = self._script
        wanted = script.n if script.n is not None else draw.randint(SHORTEST, LONGEST)
        characters = sum(len(message.content) for message in job.messages)
        return Sequence(
            prompt=max(1, math.ceil(characters / CHARACTERS_PER_TOKEN)),
            length=max(1, min(wanted, job.sampling.max_tokens)),
            cut=wanted > job.sampling.max_tokens,
            draw=draw,
            script=script,
            arrived_ms=_now_ms(),
        )

    async def _tick(self) -> None:
        """Step after step, each at its time; a step that comes late (busy host) shifts the later ones."""
        due_ms = _now_ms()
        while self._dead is None:
            plan = self._scheduler.plan(max(due_ms, _now_ms()))
            if plan is None:
                await self._rest()
                due_ms = _now_ms()
                continue
            due_ms += plan.duration_ms
            await asyncio.sleep(max(0.0, due_ms - _now_ms()) / 1e3)
            for sequence, item in self._scheduler.complete(plan, _now_ms()):
                if isinstance(item, EngineError) and item.error_class == "engine_dead":
                    self._die(item)
                    break
                listener = self._listeners.get(id(sequence))
                if listener is not None:
                    listener.put(item)
            due_ms = max(due_ms, _now_ms() - plan.duration_ms)

    async def _rest(self) -> None:
        """Until a request comes or a held one may go on."""
        wake_ms = self._scheduler.wake_ms()
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wake_ms is None else max(0.0, wake_ms - _now_ms()) / 1e3):
                await self._work.wait()

    def _clock_ended(self, clock: asyncio.Task[None]) -> None:
        """A clock that broke must not leave everyone waiting."""
        if not clock.cancelled() and (error := clock.exception()) is not None:
            self._die(
                EngineError("engine_dead", f"the simulated engine broke ({type(error).__name__})", retryable=True)
            )

    def _die(self, error: EngineError) -> None:
        self._dead = error
        for listener in self._listeners.values():
            listener.put(error)


def _now_ms() -> float:
    return time.monotonic() * 1e3
