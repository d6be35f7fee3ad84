"""`make test-vllm` as a part of `make test`, where its environment is there already or is asked for."""

import os
import subprocess

import pytest

from tests.integration.generator.lab import ROOT, bare_environment

READY = ROOT / ".venv-vllm" / ".ready"
WANTED = os.environ.get("RAILBUS_TEST_VLLM") == "1"
PATIENCE_S = 2_400


@pytest.mark.slow
@pytest.mark.skipif(
    not (READY.is_file() or WANTED),
    reason="the environment of vLLM's CPU build is not there: make test-vllm installs it (6.3 GB, about four minutes),"
    " and so does RAILBUS_TEST_VLLM=1",
)
@pytest.mark.skipif(os.environ.get("RAILBUS_TEST_VLLM") == "0", reason="RAILBUS_TEST_VLLM=0")
def test_vllm_on_the_cpu():
    ended = subprocess.run(
        ["make", "test-vllm"], cwd=ROOT, env=bare_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:]
