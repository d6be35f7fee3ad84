"""Test that with ``railbus up --vertex-emulator``, the emulator answers requests that failed on the self-hosted engine.

Also test that the web page tells users about the emulator.
"""

import urllib.request

from tests.e2e.patience import PATIENT_ROUTER
from tests.support.tree import running_tree
from tests.support.waiting import wait_until


def test_failed_requests_go_to_the_emulator_and_the_page_says_so(tmp_path):
    with running_tree(tmp_path, "--engine", "simulated", "--vertex-emulator", "--no-redis", **PATIENT_ROUTER) as tree:
        with urllib.request.urlopen(tree.url, timeout=30) as page:
            assert '<p id="notice">Late and failed requests fall back to an emulator' in page.read().decode()
        assert {"vertex", "vertex-emulator"} <= tree.state["pids"].keys()

        def answer():
            return tree.railbus("ask", "hello", "--model", "simulated-err503", "--ttft-ms", "5000")

        done = answer()
        assert done.returncode == 0, done
        assert "The cloud answers in place of the engine" in done.stdout
        tree.kill("vertex")
        wait_until(lambda: answer().returncode == 0, "an answer after the Vertex worker was killed", 90)

        def line_of_the_doctor():
            return tree.railbus("doctor").stdout.split(" vertex ")[1].splitlines()[0]

        wait_until(lambda: "ready" in line_of_the_doctor(), "the doctor finds it ready", 90)


def test_without_it_they_fail_and_nothing_is_said(tree):
    with urllib.request.urlopen(tree.url, timeout=30) as page:
        assert "notice" not in page.read().decode()
    assert tree.railbus("ask", "hello", "--model", "simulated-err503").returncode == 1
