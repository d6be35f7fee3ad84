"""Run commands on one engine: ``python -m services.generator.bench.session``.

Commands are read from standard input, one JSON object per line. The first line of output says that the engine is ready.
"""

import asyncio
import os
import sys
import time
from typing import Annotated, Any, Final

import msgspec

from schemas.requests import Message, Sampling
from services.generator.bench import resources
from services.generator.bench.driver import Driver
from services.generator.bench.workload import SampleLoop, Workload
from services.generator.cores import bind_to_cores
from services.generator.engines import make
from services.generator.settings import GeneratorSettings
from services.runtime import run
from services.runtime.errors import UserError
from services.runtime.settings import load_settings
from services.worker.engine import Engine, EngineError, EngineStep, Job, ScoringEngine

MAX_LINE_BYTES: Final = 64 * 2**20
LOAD_LIMIT_S: Final = 7_200.0
"""``RunLoad`` sends no request later than this many seconds after it began."""

REQUEST_TIMEOUT_S: Final = 300.0
SEED: Final = 1


class RunLoad(msgspec.Struct, frozen=True, tag="load", forbid_unknown_fields=True):
    loop: SampleLoop


class RunAnswers(msgspec.Struct, frozen=True, tag="answers", forbid_unknown_fields=True):
    questions: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)]
    output: Annotated[int, msgspec.Meta(ge=1, le=4_096)]


class RunScores(msgspec.Struct, frozen=True, tag="scores", forbid_unknown_fields=True):
    texts: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)]


_decode = msgspec.json.Decoder(RunLoad | RunAnswers | RunScores).decode


class EngineSession:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked = 0
        about = Workload(
            engine=engine.name, cells=(), streams=(), output=2, temperature=0.0, seed=SEED,
            request_s=REQUEST_TIMEOUT_S, limit_s=LOAD_LIMIT_S,
        )  # fmt: skip
        self._driver = Driver(engine, about)

    async def do(self, command: RunLoad | RunAnswers | RunScores) -> dict[str, Any]:
        if isinstance(command, RunLoad):
            self._driver.restart_limit()  # an engine can be in use for longer than one load may take
            began = time.monotonic()
            requests = await self._driver.sample(command.loop)
            wall_s = time.monotonic() - began
            return {
                "requests": [
                    {"steps": each.steps, "total_ms": each.total_ms, "error": each.error} for each in requests
                ],
                "wall_s": wall_s,
                "memory_mib": resources.peak_mib(),
                "gpu_mib": resources.gpu_mib(),
            }
        if isinstance(command, RunAnswers):
            return {"texts": [await self._answer(question, command.output) for question in command.questions]}
        return {"scores": await self._scores(command.texts)}

    async def _answer(self, question: str, output: int) -> str | None:
        self._asked += 1
        engine, name = self._engine, f"answer-{self._asked}"
        job = Job(
            request_id=name, run=name, model=engine.model, messages=(Message(role="user", content=question),),
            sampling=Sampling(max_tokens=output, temperature=0.0, seed=SEED),
        )  # fmt: skip
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return "".join([item.text async for item in engine.generate(job) if isinstance(item, EngineStep)])
        except (EngineError, TimeoutError):
            return None

    async def _scores(self, texts: tuple[str, ...]) -> list[dict[str, float]] | None:
        if not isinstance(self._engine, ScoringEngine):
            return None
        found = []
        for text in texts:
            try:
                score = await self._engine.score(text)
            except EngineError:
                score = None
            if score is None:
                return None
            found.append({"nats": score.nats, "tokens": score.tokens})
        return found


async def main() -> None:
    answers = _own_output()
    settings = load_settings(GeneratorSettings)
    bind_to_cores(settings.generator_cores)
    engine = make(settings.engine, os.environ)
    began = time.monotonic()
    try:
        await engine.start()
        session = EngineSession(engine)
        ready = {
            "engine": engine.name, "model": engine.model, "ready_s": time.monotonic() - began,
            "machine": resources.machine(),
        }  # fmt: skip
        _write(answers, ready)
        while line := await asyncio.to_thread(sys.stdin.buffer.readline, MAX_LINE_BYTES):
            try:
                command = _decode(line)
            except msgspec.DecodeError as error:
                raise UserError(f"a line is no command: {error}; run `railbus tune`, which writes them") from None
            _write(answers, await session.do(command))
    finally:
        await engine.close()


def _own_output() -> int:
    # Libraries print to standard output, so file descriptor 1 is redirected to stderr.
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _write(answers: int, found: dict[str, Any]) -> None:
    data = memoryview(msgspec.json.encode(found) + b"\n")
    while data:
        data = data[os.write(answers, data) :]


if __name__ == "__main__":
    run(main, "bench")
