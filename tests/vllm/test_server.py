"""Test vLLM as a separate server, which the engine ``openai`` of the generator uses."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from schemas.requests import Message, Sampling
from services.generator.engines import make
from services.worker.engine import EngineError, GenerationResult, Job
from tests.support.processes import ROOT, bare_environment, free_port
from tests.vllm.models import sentence

STARTING_S = 240


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    port = free_port()
    draft = {
        "method": "draft_model", "model": str(models["near"]), "num_speculative_tokens": 3,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models["target"]),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--block-size", "32", "--max-model-len", "512", "--max-num-seqs", "8", "--enforce-eager",
        "--kv-cache-memory-bytes", str(1 << 27), "--language-model-only", "--disable-hybrid-kv-cache-manager",
        "--per-request-spec-decode-metrics", "summary", "--speculative-config", json.dumps(draft),
    ]  # fmt: skip
    env = bare_environment() | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + STARTING_S
        while not answers(f"{url}/health"):
            assert process.poll() is None, log.read_text()[-3_000:]
            assert time.monotonic() < deadline, log.read_text()[-3_000:]
            time.sleep(0.5)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


def job(content, **sampling):
    return Job(
        request_id="r", run="r", model="tiny", messages=(Message(role="user", content=content),),
        sampling=Sampling(**{"max_tokens": 40, "temperature": 0, **sampling}),
    )  # fmt: skip


async def test_its_last_chunk_and_its_metrics_tell_of_its_drafts(server):
    engine = make("openai", {"RAILBUS_UPSTREAM_URL": server, "RAILBUS_UPSTREAM_STEP_USAGE": "on"})
    await engine.start()
    try:
        assert engine.model == "tiny"
        async with asyncio.timeout(60):
            *steps, done = [item async for item in engine.generate(job(sentence(1, 20)))]
        assert isinstance(done, GenerationResult)
        assert sum(step.tokens for step in steps) == done.usage.completion_tokens
        assert len(steps) < done.usage.completion_tokens, "some steps said several tokens"
        told = done.speculation
        assert told.drafted >= told.accepted > 0 < told.steps
        assert sum(told.accepted_by_position) == told.accepted
        totals = await engine._metrics.poll()
        assert (totals.drafted, totals.accepted) == (told.drafted, told.accepted), "nobody else asked"
        with pytest.raises(EngineError, match=r"the prompt is too long: .*the limit is 512 tokens"):
            async with asyncio.timeout(60):
                _ = [item async for item in engine.generate(job(sentence(1, 600)))]
    finally:
        await engine.close()
