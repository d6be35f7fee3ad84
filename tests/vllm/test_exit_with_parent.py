"""Test that vLLM's processes end when the generator is killed.

Test also that the executor fetches draft tokens from vLLM's workers only after a step that drafted tokens.
"""

import asyncio
import signal
import subprocess
import sys

import psutil
import pytest

from tests.integration.generator.lab import GeneratorLab
from tests.support import processes
from tests.vllm.test_pipeline import STARTING_S


@pytest.mark.parametrize("drafting", [{}, {"RAILBUS_VLLM_METHOD": "ngram"}], ids=["plain", "patched"])
async def test_a_killed_generator_leaves_no_engine_behind(drafting, models, settings, monkeypatch):
    monkeypatch.setattr(processes, "START_TIMEOUT_S", STARTING_S)
    async with GeneratorLab.opened() as lab:
        wanted = {"RAILBUS_ENGINE": "vllm", "RAILBUS_MODEL_PATH": str(models["target"])}
        process = await lab.generator(**settings | drafting | wanted)
        engines = psutil.Process(process.pid).children(recursive=True)
        assert len(engines) >= 2, "one schedules, one computes"
        process.signal(signal.SIGKILL)
        await process.ended()
        _, alive = await asyncio.to_thread(psutil.wait_procs, engines, 20)
        names = [child.name() for child in alive]
        for child in alive:
            child.kill()
        assert names == []


PROGRAM = """
from types import SimpleNamespace
from services.generator.engines.vllm.executor import SkipDraftExecutor

executor, asked = object.__new__(SkipDraftExecutor), []
executor.output_rank = executor.kv_output_aggregator = executor.ec_output_aggregator = None
executor.collective_rpc = lambda method, **_how: asked.append(method) or "answered"
for drafted in (0, 2):
    executor.execute_model(SimpleNamespace(num_spec_tokens_to_schedule=drafted))
    print(executor.take_draft_token_ids(), asked)
    asked.clear()
"""


def test_drafts_are_asked_for_only_after_a_step_that_drafted():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-2:] == [
        "None ['execute_model']",
        "answered ['execute_model', 'take_draft_token_ids']",
    ], done.stderr
