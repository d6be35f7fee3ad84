"""Tests of the engine ``vertex``, which uses Google's client, with the Vertex AI emulator over real HTTP."""

import asyncio
import contextlib
import errno
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import google.auth
import pytest
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.oauth2.credentials import Credentials

from schemas.requests import Message, Sampling
from services.devtools.vertex.script import EmulatorScript
from services.devtools.vertex.server import VertexEmulator, serving
from services.runtime.clock import steady_us
from services.runtime.errors import UserError
from services.vertex.engine import VertexEngine
from services.vertex.settings import VertexSettings
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job
from tests.support.waiting import until

SECRET = "xyzzy-prompt"


@asynccontextmanager
async def engine(model: str) -> AsyncIterator[tuple[VertexEngine, VertexEmulator]]:
    emulator = VertexEmulator(EmulatorScript())
    async with serving(emulator, "127.0.0.1", 0) as port:
        it = VertexEngine(VertexSettings(vertex_url=f"http://127.0.0.1:{port}", vertex_model=model))
        await it.start()
        try:
            yield it, emulator
        finally:
            await it.close()


def job(model: str, *, seconds: float = 60, max_tokens: int = 100, system: str = "Be brief.") -> Job:
    return Job(
        request_id="r",
        run="run",
        model=model,
        messages=(Message(role="system", content=system), Message(role="user", content=SECRET)),
        sampling=Sampling(max_tokens=max_tokens),
        expires_us=steady_us() + int(seconds * 1e6),
    )


async def run(model: str, **fields: float) -> tuple[list[EngineStep], GenerationResult, VertexEmulator]:
    async with engine(model) as (it, emulator):
        items = [item async for item in it.generate(job(model, **fields))]  # type: ignore[arg-type]
    *steps, done = items
    assert isinstance(done, GenerationResult)
    assert it.stats().running == 0
    return [step for step in steps if isinstance(step, EngineStep)], done, emulator


async def failure(model: str, **fields: float) -> tuple[EngineError, VertexEmulator, list[EngineStep]]:
    steps: list[EngineStep] = []
    async with engine(model) as (it, emulator):
        with pytest.raises(EngineError) as caught:
            await drain(it, job(model, **fields), steps)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    assert it.stats().running == 0
    return caught.value, emulator, steps


async def drain(it: VertexEngine, asked: Job, steps: list[EngineStep]) -> None:
    async for item in it.generate(asked):
        assert isinstance(item, EngineStep)
        steps.append(item)


async def test_answer_streams_word_by_word_with_its_usage() -> None:
    steps, done, _ = await run("emulated-n5-gap5")
    assert "".join(step.text for step in steps) == "The cloud answers in place"
    assert len(steps) == 5
    assert done.finish_reason == "stop"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 5)


async def test_length_ends_it() -> None:
    steps, done, _ = await run("emulated-n50-gap1", max_tokens=4)
    assert (len(steps), done.finish_reason) == (4, "length")


async def test_empty_messages_and_long_answers_are_not_refused() -> None:
    async with engine("emulated-n2-gap1") as (it, _):
        items = [item async for item in it.generate(job("emulated-n2-gap1", max_tokens=131_072, system=""))]
    assert isinstance(items[-1], GenerationResult)
    assert items[-1].finish_reason == "stop"


async def test_frames_without_text_are_no_steps() -> None:
    steps, _, _ = await run("emulated-n2-empty3-gap1")
    assert len(steps) == 2


@pytest.mark.parametrize(
    ("script", "error_class", "retryable", "words"),
    [
        ("err400", "bad_request", False, 0),
        ("err401", "auth", False, 0),
        ("err403", "auth", False, 0),
        ("err404", "bad_request", False, 0),
        ("err500", "internal", True, 0),
        ("err504", "timeout", True, 0),
        ("bad", "internal", True, 0),
        ("shut", "safety_block", False, 0),
        ("block2", "safety_block", False, 2),
        ("die0", "unavailable", True, 0),
        ("die3", "unavailable", True, 3),
        ("fault2", "internal", True, 2),
    ],
)
async def test_errors_become_engine_errors(script: str, error_class: str, retryable: bool, words: int) -> None:
    error, emulator, steps = await failure(f"emulated-n9-gap1-{script}")
    assert (error.error_class, error.retryable) == (error_class, retryable)
    assert len(steps) == words
    assert emulator.stats["calls"] == 1


async def test_busy_server_is_asked_again_when_it_says() -> None:
    steps, _, emulator = await run("emulated-n3-gap1-err429-wait1-heal1")
    assert len(steps) == 3
    assert emulator.stats["calls"] == 2


async def test_busy_server_is_not_waited_for_beyond_the_deadline() -> None:
    begin = time.monotonic()
    error, emulator, _ = await failure("emulated-err429-wait60", seconds=20)
    assert (error.error_class, error.retryable) == ("overloaded", True)
    assert emulator.stats["calls"] == 1
    assert time.monotonic() - begin < 20


async def test_server_that_stays_away_is_given_up() -> None:
    error, emulator, _ = await failure("emulated-err503-wait0")
    assert error.error_class == "unavailable"
    assert emulator.stats["calls"] == 4


async def test_an_unreachable_server_is_an_error() -> None:
    it = VertexEngine(VertexSettings(vertex_url="http://127.0.0.1:9", vertex_model="m"))
    await it.start()
    with pytest.raises(EngineError, match="cannot be reached"):
        async for _ in it.generate(job("m")):
            pass
    await it.close()


def wrapped(error: GoogleAuthError, cause: GoogleAuthError) -> GoogleAuthError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "error_class", "retryable"),
    [
        (RefreshError("invalid_grant"), "auth", False),
        (RefreshError("internal_failure", retryable=True), "unavailable", True),
        (TransportError("no route to oauth2.googleapis.com"), "unavailable", True),
        (wrapped(RefreshError("metadata"), TransportError("no route")), "unavailable", True),
    ],
)
async def test_only_refused_credentials_need_a_new_sign_in(
    error: GoogleAuthError, error_class: str, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refresh(*_: object) -> None:
        raise error

    monkeypatch.setattr(Credentials, "refresh", refresh)
    it = VertexEngine(VertexSettings(vertex_url="http://127.0.0.1:9", vertex_model="m"))
    await it.start()
    monkeypatch.setattr(Credentials, "expired", True)
    with pytest.raises(EngineError) as caught:
        await drain(it, job("m"), [])
    await it.close()
    assert (caught.value.error_class, caught.value.retryable) == (error_class, retryable)


@pytest.mark.parametrize("moment", ["first", "middle", "between", "stalled"])
async def test_cancelling_closes_the_connection(moment: str) -> None:
    model = {"first": "emulated-ttft60000", "middle": "emulated-n1000-gap20", "between": "emulated-n1000-gap1"}.get(
        moment, "emulated-n9-gap1-stall3"
    )
    async with engine(model) as (it, emulator):
        if moment == "between":
            async with contextlib.aclosing(it.generate(job(model))) as items:
                async for _ in items:
                    break
        else:

            async def consume() -> None:
                async for _ in it.generate(job(model)):
                    pass

            task = asyncio.create_task(consume())
            await until(lambda: emulator.stats["running"] == 1)
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await until(lambda: emulator.stats["running"] == 0)
        assert emulator.stats["cut_off"] == 1
        assert it.stats().running == 0


async def test_prompts_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await run("emulated-n2-gap1")
    await failure("emulated-err500")
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (Is a directory)"),
        ("[]", "cannot be used (AttributeError)"),
        ('{"type": "impersonated_service_account"}', "cannot be used (AttributeError)"),
        ("{", "no Google credentials"),
    ],
)
async def test_a_key_file_that_is_none_is_a_mistake(
    content: str | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path
    if content is not None:
        path = tmp_path / "key.json"
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(UserError, match=f"{re.escape(message)}.*GOOGLE_APPLICATION_CREDENTIALS"):
        await VertexEngine(VertexSettings()).start()


async def test_a_key_file_of_another_user_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def default(**_: object) -> None:  # the tests may run as root, who may read every file
        raise PermissionError(errno.EACCES, "Permission denied", "/run/secrets/key")

    monkeypatch.setattr(google.auth, "default", default)
    with pytest.raises(UserError, match=r"/run/secrets/key cannot be read \(Permission denied\).* user 10001"):
        await VertexEngine(VertexSettings()).start()


async def test_without_credentials_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(UserError, match="gcloud auth application-default login"):
        await VertexEngine(VertexSettings()).start()
