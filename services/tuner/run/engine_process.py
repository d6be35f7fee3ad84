"""Run an engine in a child process. Commands and answers are JSON lines."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import IO, Any, Final, TypeVar

import msgspec

from services.tuner.measurements import Load
from services.tuner.quality.compare import Answers, TextScore

START_TIMEOUT_S: Final = 1_500.0
REQUEST_TIMEOUT_S: Final = 300.0
"""Maximum time of one request in the child, in seconds. The timeout of a command grows with its number of requests."""

STOP_TIMEOUT_S: Final = 15.0
IDLE_STOP_TIMEOUT_S: Final = 5.0
"""Seconds within which an engine should end after its input is closed. Otherwise it gets a signal."""

MAX_LINE_BYTES: Final = 64 * 2**20
MAX_ERROR_BYTES: Final = 8_192

StructT = TypeVar("StructT", bound=msgspec.Struct)


class EngineProcessError(Exception):
    """The engine did not start, or it ended, or it did not answer in time. The message has the reason."""


class Ready(msgspec.Struct, frozen=True):
    engine: str
    model: str
    ready_s: float
    machine: dict[str, str | int | None]


class _Texts(msgspec.Struct, frozen=True):
    texts: tuple[str | None, ...]


class _Scores(msgspec.Struct, frozen=True):
    scores: tuple[TextScore, ...] | None


class EngineProcess:
    def __init__(self, process: asyncio.subprocess.Process, ready: Ready, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self.ready = ready

    async def load(self, prompts: Sequence[str], *, at_once: int, output: int) -> Load:
        """Send all prompts, with at most ``at_once`` requests at a time, and measure the answers."""
        loop = {"prompts": list(prompts), "at_once": at_once, "output": output}
        longest = REQUEST_TIMEOUT_S * (1 + len(prompts) / at_once)
        return await self._ask({"type": "load", "loop": loop}, Load, longest)

    async def answers(self, questions: Sequence[str], *, output: int, texts: Sequence[str]) -> Answers:
        """Return the engine's answers to ``questions``, and the probability that it gives to each of ``texts``.

        The texts are independent of the questions. The answers are generated at temperature 0. ``output`` is the
        maximum number of tokens of an answer.
        """
        command = {"type": "answers", "questions": list(questions), "output": output}
        said = await self._ask(command, _Texts, REQUEST_TIMEOUT_S * len(questions))
        scored = await self._ask({"type": "scores", "texts": list(texts)}, _Scores, REQUEST_TIMEOUT_S * len(texts))
        return Answers(texts=said.texts, scores=scored.scores)

    async def _ask(self, command: Mapping[str, Any], kind: type[StructT], longest_s: float) -> StructT:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the engine has no pipes")
        try:
            async with asyncio.timeout(longest_s):
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
            return msgspec.json.decode(line, type=kind)
        except TimeoutError:
            raise EngineProcessError(f"no answer within {longest_s:.0f} s") from None
        except (OSError, ValueError, msgspec.DecodeError):  # the engine has ended, perhaps in the middle of a line
            raise EngineProcessError(await self._last_words()) from None

    async def _last_words(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        return last_words(self._process.returncode, self._errors)


@asynccontextmanager
async def engine_process(env: Mapping[str, str]) -> AsyncIterator[EngineProcess]:
    """Run an engine in a child process during the ``async with`` block.

    The child gets this process's environment variables and ``env``. Variables with an empty value are left out.
    """
    full = {name: value for name, value in {**os.environ, **env}.items() if value}
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "services.generator.bench.session",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, env=full,
            limit=MAX_LINE_BYTES,
        )  # fmt: skip
        try:
            yield EngineProcess(process, await _ready(process, errors), errors)
        finally:
            await _end(process)


async def _ready(process: asyncio.subprocess.Process, errors: IO[bytes]) -> Ready:
    if process.stdout is None:
        raise RuntimeError("the engine has no pipes")
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return msgspec.json.decode(await process.stdout.readline(), type=Ready)
    except TimeoutError:
        raise EngineProcessError(f"not ready within {START_TIMEOUT_S:.0f} s") from None
    except (ValueError, msgspec.DecodeError):
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
        raise EngineProcessError(last_words(process.returncode, errors)) from None


def last_words(code: int | None, errors: IO[bytes]) -> str:
    """Return why an engine ended: the signal that ended it, or the last line of its error output."""
    if code is not None and code < 0:
        return f"the engine was ended by signal {-code}: these settings are too much for it"
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - MAX_ERROR_BYTES))
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("bench: ")[:500] if lines else "it ended without a word"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    # A child that is running a command does not notice that its input was closed.
    steps = (None, IDLE_STOP_TIMEOUT_S), (process.terminate, STOP_TIMEOUT_S), (process.kill, STOP_TIMEOUT_S)
    for signal, patience_s in steps:
        if signal is not None and process.returncode is None:
            signal()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await process.wait()
                return
