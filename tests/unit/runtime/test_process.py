"""Tests of ``services.runtime.run``. This function ends its process, so each test starts a process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test starts a process

ROOT = Path(__file__).resolve().parents[3]

PRELUDE = """
import asyncio
from services.runtime import UserError, run
"""


def start(main: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"{PRELUDE}\n{main}\nrun(main, 'sample')"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("RAILBUS_")},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


WAITS = """
async def main():
    print("ready", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        print("cleaned", flush=True)
"""


def test_an_end_is_clean() -> None:
    assert finish(start("async def main(): print(type(asyncio.get_running_loop()).__module__)")) == (0, "uvloop\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_main_clean_up_and_the_second_changes_nothing(number: signal.Signals) -> None:
    process = start(WAITS)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert (code, out) == (0, "cleaned\n")
    assert err.count("stopping") == 1


def test_a_users_mistake_is_one_line() -> None:
    result = finish(start("async def main(): raise UserError('RAILBUS_X=1: must be 2')"))
    assert result == (2, "", "railbus sample: RAILBUS_X=1: must be 2\n")


@pytest.mark.parametrize(("error", "code"), [("UserError", 2), ("UnavailableError", 1)])
def test_what_a_task_group_raises_is_one_line(error: str, code: int) -> None:
    main = f"""
from services.runtime.errors import UnavailableError
async def fail(): raise {error}('its disk is full')
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
"""
    assert finish(start(main)) == (code, "", "railbus sample: its disk is full\n")


def test_a_crash_says_where() -> None:
    code, _, err = finish(start("async def main(): raise ZeroDivisionError('x')"))
    assert code == 1
    assert "CRITICAL railbus.sample crashed: x" in err
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "code"), [("UserError('its disk is full')", 2), ("ValueError('its disk is full')", 1)]
)
def test_a_thread_that_hangs_does_not_keep_a_failed_process(error: str, code: int) -> None:
    main = f"""
import time
from services.runtime import process
process.GRACE_S = 0.3
async def main():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 20)
    raise {error}
"""
    began = time.monotonic()
    found, _, err = finish(start(main))
    assert time.monotonic() - began < 15
    assert found == code
    assert "its disk is full" in err


def test_a_crash_while_stopping_is_a_crash() -> None:
    process = start(WAITS.replace('print("cleaned", flush=True)', "raise ValueError('late')"))
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 1
    assert "crashed: late" in err


def test_a_cancellation_without_a_signal_is_a_crash() -> None:
    code, _, err = finish(start("async def main(): raise asyncio.CancelledError"))
    assert code == 1
    assert "main was cancelled without a signal" in err


PASSES_SIGTERM_ON = """
import subprocess, sys
from services.runtime.process import passing_sigterm_to
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with passing_sigterm_to(child) as received:
    print("ready", flush=True)
    child.wait()
print(received, child.returncode)
"""


def test_sigterm_ends_the_child_of_a_process_too() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PASSES_SIGTERM_ON], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    assert finish(process) == (0, "[15] -15\n", "")


@pytest.mark.parametrize("text", ["", " ", " info "])
def test_an_empty_log_level_is_the_default(text: str) -> None:
    code = "from services.runtime.logging import *; configure_logging(); print(logging.getLogger().level)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"RAILBUS_LOG_LEVEL": text}, capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("20\n", "")


def test_a_wrong_log_level_is_a_users_mistake() -> None:
    process = subprocess.run(
        [sys.executable, "-c", f"{PRELUDE}\nasync def main(): pass\nrun(main, 'sample')"],
        cwd=ROOT,
        env={"RAILBUS_LOG_LEVEL": "LOUD"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert process.returncode == 2
    assert process.stderr == "railbus sample: RAILBUS_LOG_LEVEL='LOUD': must be one of DEBUG, INFO, WARNING, ERROR\n"
