"""Run the tests of `make test-vllm` and a test with all services, if vLLM is installed or ``RAILBUS_TEST_VLLM=1``."""

import os
import subprocess
import sys

import pytest

from tests.support.processes import ROOT, bare_environment

READY = ROOT / ".venv-vllm" / ".ready"
WANTED = os.environ.get("RAILBUS_TEST_VLLM") == "1"
PATIENCE_S = 2_400


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (READY.is_file() or WANTED),
        reason="the environment of vLLM's CPU build is not there: make test-vllm installs it (6.3 GB, about four"
        " minutes), and so does RAILBUS_TEST_VLLM=1",
    ),
    pytest.mark.skipif(os.environ.get("RAILBUS_TEST_VLLM") == "0", reason="RAILBUS_TEST_VLLM=0"),
]


def test_vllm_on_the_cpu():
    # The arguments of an outer `make test ARGS=...` are not meant for the inner make.
    env = {name: value for name, value in bare_environment().items() if not name.startswith("MAKE")}
    ended = subprocess.run(
        ["make", "test-vllm", "ARGS=tests/vllm"], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:]


def test_a_question_through_rails_vllm_and_safety(tmp_path):
    """A prompt is answered through rails, vLLM and safety. Only the generator runs in vLLM's virtual environment."""
    made = subprocess.run(
        [ROOT / ".venv-vllm/bin/python", "-c", MAKE_MODELS, str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    profile = (ROOT / "infra/profiles/cpu-test.env").read_text(encoding="utf-8").splitlines()
    env = dict(line.split("=", 1) for line in profile if line and not line.startswith("#"))
    ended = subprocess.run(
        [sys.executable, "-m", "services.cli", "up", "--engine", "vllm", "--model-path", str(tmp_path / "target"),
         "--draft-path", str(tmp_path / "near"), "--port", "0", "--ask", "da do bi", "--once"],
        cwd=ROOT, env=bare_environment() | env | {"RAILBUS_STATE_DIR": str(tmp_path / "state")},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "engine vllm" in ended.stderr
    assert "completed, first token after" in ended.stderr
    assert len(ended.stdout.partition("> da do bi")[2].split()) > 3, "it said something"


MAKE_MODELS = """
import sys
from pathlib import Path
from tests.vllm.models import make_model, nudged
root = Path(sys.argv[1])
nudged(make_model(root / "target", seed=1), root / "near", seed=2, noise=0.05)
"""
