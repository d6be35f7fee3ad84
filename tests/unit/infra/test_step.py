"""Test that ``infra/step.sh`` reports how long a command of the Makefile takes, and keeps its output and exit code."""

import subprocess

from tests.unit.infra.test_compose import ROOT

STEP = ROOT / "infra" / "step.sh"


def step(*arguments):
    return subprocess.run([STEP, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_a_step_names_itself_and_its_time():
    done = step("1 of 1: a step", "true")
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "  1 of 1: a step"
    assert "  1 of 1: a step: done after " in done.stderr


def test_a_step_that_fails_shows_its_output_and_keeps_its_exit_code():
    done = step("a step", "sh", "-c", "echo no network >&2; exit 3")
    assert done.returncode == 3
    assert "no network" in done.stderr
    assert "a step: failed after " in done.stderr
