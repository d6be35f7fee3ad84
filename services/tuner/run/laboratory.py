"""Start engines with and without a change of settings, and compare their speed and their answers."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from services.tuner.decide import Trial
from services.tuner.experiment import SettingsChange, Size
from services.tuner.measurements import Load, Round
from services.tuner.quality.compare import Answers, Quality, compare
from services.tuner.quality.tasks import MAX_TOKENS, task_set
from services.tuner.run.engine_process import EngineProcess, EngineProcessError, Ready, engine_process
from services.tuner.run.prompts import prompts

MAX_KEPT: Final = 3
"""Maximum number of engines that stay loaded with ``keep``: the two that are compared, and one used earlier."""

EngineKey = tuple[tuple[tuple[str, str], ...], bool]

WARM_UP_TURNS: Final = 2
"""Number of warm-up requests per concurrent request. In their first steps, engines compile and fill caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The properties that all requests of an experiment share.

    Attributes:
        prompt: Approximate number of tokens of a prompt.
        shared: Length of the prefix that all prompts have in common, as a share of a prompt.
        output: Maximum number of tokens of an answer.
    """

    prompt: int = 64
    shared: float = 0.5
    output: int = 16
    at_once: int = 2
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Pilot:
    """A short measurement before the experiment, to choose the number of measurements.

    Attributes:
        request_s: Duration of the measurement in seconds, divided by its number of requests.
    """

    ready: Ready
    start_s: float
    request_s: float


@dataclass(slots=True)
class Laboratory:
    """Starts the engines of an experiment, and compares them.

    Attributes:
        apart: Whether only one engine may be in memory at a time.
        keep: Whether engines stay loaded between rounds. This saves the time to start them again.
    """

    shape: Shape
    apart: bool = False
    keep: bool = False
    _loads: int = 0
    _kept: dict[EngineKey, tuple[AsyncExitStack, EngineProcess]] = field(default_factory=dict)
    _answers: dict[tuple[tuple[str, str], ...], tuple[Answers, Answers]] = field(default_factory=dict)

    async def pilot(self, env: Mapping[str, str]) -> Pilot:
        """Start the engine once, and run a small load. Measure the duration of the start, and the time per request."""
        began = time.monotonic()
        async with self.engine(env) as engine:
            start_s, count = time.monotonic() - began, 4 * self.shape.at_once
            load = await self.load(engine, count, "pilot")
            if not any(row.answered for row in load.requests):
                raise EngineProcessError(f"no request was answered: {load.requests[0].error}")
            return Pilot(engine.ready, start_s, load.wall_s / count)

    async def compare(self, base: Mapping[str, str], change: SettingsChange, size: Size) -> Trial:
        """Measure the speed of the engine with and without a change.

        If an engine fails, the result has the error and the rounds that were finished before the failure.
        """
        after = change.over(base)
        rounds: list[Round] = []
        try:
            for number in range(size.rounds):
                rounds.append(await self._round(base, after, size.load, number))  # noqa: PERF401 - it awaits, and may end early
        except EngineProcessError as error:
            return Trial(change=change, base=dict(base), size=size, rounds=tuple(rounds), error=str(error))
        return Trial(change=change, base=dict(base), size=size, rounds=tuple(rounds))

    async def with_quality(self, trial: Trial) -> Trial:
        """Return the trial with its ``quality``, or with its ``quality_error`` if an engine fails."""
        try:
            return replace(trial, quality=await self.quality(trial.base, trial.change))
        except EngineProcessError as error:
            return replace(trial, quality_error=str(error))

    async def quality(self, base: Mapping[str, str], change: SettingsChange) -> Quality | None:
        """Compare the answers with and without a change.

        Return None for the engine ``simulated``, whose answers are random words.

        Raises:
            EngineProcessError: An engine failed.
        """
        if base.get("RAILBUS_ENGINE") == "simulated":
            return None  # its words are drawn at random
        key = tuple(sorted(base.items()))
        if key not in self._answers:
            self._answers[key] = (await self._pass(base), await self._pass(base, twin=True))
        before, again = self._answers[key]
        after = await self._pass(change.over(base))
        return compare(before, again, after, [task.answer for task in task_set().tasks])

    @asynccontextmanager
    async def engine(self, env: Mapping[str, str], *, twin: bool = False) -> AsyncIterator[EngineProcess]:
        """Provide a warm engine with the settings ``env`` for an ``async with`` block.

        If the attribute ``keep`` is false, the engine ends after the block. To run two engines with equal settings at
        once, set ``twin`` for one of them. Otherwise, both calls may provide the same process.
        """
        if not self.keep:
            async with engine_process(env) as engine:
                await self.warm_up(engine)
                yield engine
            return
        key = (tuple(sorted(env.items())), twin)
        stack, engine = self._kept.pop(key) if key in self._kept else await self._started(env)
        self._kept[key] = stack, engine  # moved to the end as the newest
        try:
            yield engine
        except EngineProcessError:
            del self._kept[key]
            await stack.aclose()
            raise

    async def _started(self, env: Mapping[str, str]) -> tuple[AsyncExitStack, EngineProcess]:
        while len(self._kept) >= MAX_KEPT:
            oldest, _ = self._kept.pop(next(iter(self._kept)))
            await oldest.aclose()
        stack = AsyncExitStack()
        try:
            engine = await stack.enter_async_context(engine_process(env))
            await self.warm_up(engine)
        except BaseException:
            await stack.aclose()
            raise
        return stack, engine

    async def close(self) -> None:
        while self._kept:
            _, (stack, _) = self._kept.popitem()
            await stack.aclose()

    async def warm_up(self, engine: EngineProcess) -> None:
        await self.load(engine, WARM_UP_TURNS * self.shape.at_once, "warm-up")

    async def load(self, engine: EngineProcess, count: int, name: str, *, at_once: int | None = None) -> Load:
        """Send ``count`` requests and measure them. The same ``name`` gives the same prompts."""
        shape = self.shape
        texts = prompts(count, tokens=shape.prompt, shared=shape.shared, seed=f"{shape.seed}:{name}")
        return await engine.load(texts, at_once=at_once or shape.at_once, output=shape.output)

    async def _round(self, base: Mapping[str, str], after: Mapping[str, str], count: int, number: int) -> Round:
        # The loads run in the order A B B A. A and B change places in odd rounds, so that neither always goes first.
        first, second = (base, after) if number % 2 == 0 else (after, base)
        # Both arms get the same prompts in each half. Later rounds have other prompts. Otherwise they would be in the
        # prefix cache of an engine that stayed loaded, and not in that of the other arm.
        self._loads += 1
        names = (f"{self._loads}:1", f"{self._loads}:2")
        if self.apart:
            outer = [await self._alone(first, count, names[:1])]
            inner = await self._alone(second, count, names)
            outer.append(await self._alone(first, count, names[1:]))
            loads = (*outer[0], *outer[1]), tuple(inner)
        else:
            loads = await self._together(first, second, count, names)
        return Round(before=loads[number % 2], after=loads[1 - number % 2])

    async def _together(
        self, first: Mapping[str, str], second: Mapping[str, str], count: int, names: tuple[str, str]
    ) -> tuple[tuple[Load, ...], tuple[Load, ...]]:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(self.engine(first))
            two = await stack.enter_async_context(self.engine(second, twin=first == second))
            one_first = await self.load(one, count, names[0])
            two_first = await self.load(two, count, names[0])
            two_second = await self.load(two, count, names[1])
            one_second = await self.load(one, count, names[1])
        return (one_first, one_second), (two_first, two_second)

    async def _alone(self, env: Mapping[str, str], count: int, names: tuple[str, ...]) -> list[Load]:
        async with self.engine(env) as engine:
            return [await self.load(engine, count, name) for name in names]

    async def _pass(self, env: Mapping[str, str], *, twin: bool = False) -> Answers:
        tasks = task_set()
        async with self.engine(env, twin=twin) as engine:
            questions = [task.question for task in tasks.tasks]
            return await engine.answers(questions, output=MAX_TOKENS, texts=tasks.texts)
