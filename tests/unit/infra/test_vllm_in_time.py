"""Test that ``infra/vllm-in-time.sh`` runs vLLM's tests if its time limit permits, and otherwise says why not."""

import os
import subprocess

import pytest

from tests.unit.infra.test_compose import ROOT

pytestmark = pytest.mark.slow  # it waits for what takes too long

SCRIPT = ROOT / "infra" / "vllm-in-time.sh"


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the script with a fake ``make``.

    The function's first argument is shell code. The fake ``make`` records its target, and then runs this code. The
    function returns the completed process and the recorded targets.
    """

    def with_make(does: str, seconds: int = 3_000, **env: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        make, asked = tmp_path / "make", tmp_path / "asked"
        make.write_text(f'#!/bin/sh\necho "$1" >> {asked}\n{does}\n')
        make.chmod(0o700)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [SCRIPT, str(seconds)], env={"PATH": path, **env}, capture_output=True, text=True, timeout=60, check=False
        )
        return done, asked.read_text().split() if asked.exists() else []

    return with_make


def test_with_time_enough_it_installs_and_tests(run):
    done, asked = run("exit 0")
    assert (done.returncode, done.stderr, asked) == (0, "", ["vllm", "test-vllm-core"])


def test_without_time_it_says_so_and_begins_nothing(run):
    done, asked = run("exit 0", 900)
    assert (done.returncode, asked) == (0, [])
    assert done.stderr == (
        "vLLM's tests are skipped: 15 minutes are left, and they may take 16. Run them with: make test-vllm\n"
    )


@pytest.mark.parametrize("failing", ["vllm", "test-vllm-core"])
def test_what_fails_fails_it(run, failing):
    done, asked = run(f'test "$1" != {failing}')
    assert done.returncode == 1
    assert asked[-1] == failing


@pytest.mark.parametrize(
    ("slow", "why"), [("vllm", "the installation took too long"), ("test-vllm-core", "they did not end in time")]
)
def test_what_takes_too_long_is_ended_and_skipped(run, slow, why):
    done, asked = run(f'test "$1" != {slow} || exec sleep 50', 64, RAILBUS_VLLM_LEAST_S="1", RAILBUS_VLLM_TESTS_S="2")
    assert done.returncode == 0
    assert done.stderr == f"vLLM's tests are skipped: {why}. Run them with: make test-vllm\n"
    assert asked[-1] == slow
