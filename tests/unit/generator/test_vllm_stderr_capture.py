"""Test which stderr lines are shown while the engine starts: Railbus's log lines, or all lines with ``verbose``."""

import subprocess
import sys

SCRIPT = """
import os, subprocess, sys, time
from services.generator.engines.vllm.stderr_capture import StderrCapture

def child(text):
    code = f"import os, sys; sys.stdin.read(); os.write(2, {text!r}.encode() + bytes([10]))"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)

failed = sys.argv[1] == "fails"
try:
    with StderrCapture(verbose=sys.argv[1] == "verbose") as capture:
        os.write(2, b"noise\\n2026 INFO railbus.bus ours\\n")
        early = child("child noise")
        late = child("later")
        early.communicate()
        while "child noise" not in capture.captured_lines:
            time.sleep(0.01)
        if failed:
            raise RuntimeError
except RuntimeError:
    os.write(2, ("said: " + "|".join(capture.captured_lines) + "\\n").encode())
late.communicate()
while "later" not in capture.captured_lines:
    time.sleep(0.01)
os.write(2, b"end\\n")
"""


def shown(how):
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    return ended.stderr.splitlines()


def test_a_start_that_succeeds():
    assert shown("succeeds") == ["2026 INFO railbus.bus ours", "later", "end"]


def test_a_start_that_fails():
    lines = shown("fails")
    assert lines == ["2026 INFO railbus.bus ours", "said: noise|2026 INFO railbus.bus ours|child noise", "end"]


def test_a_verbose_start_shows_everything():
    assert shown("verbose") == ["noise", "2026 INFO railbus.bus ours", "child noise", "later", "end"]
