"""Test that ``railbus up`` starts killed services again, and that no process is left when it ends."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.processes import bare_environment
from tests.support.tree import running_tree
from tests.support.waiting import wait_until


def ask(tree):
    return tree.railbus("ask", "hello", "--max-tokens", "5", "--total-ms", "20000")


def test_each_service_that_is_killed_comes_back_and_answers_go_on(tmp_path):
    with running_tree(tmp_path, "--engine", "simulated") as tree:
        assert ask(tree).returncode == 0
        for service in ("redis", "router", "generator", "edge", "broker"):
            tree.kill(service)
            said = f"{service} ended with signal 9; starting it again"
            wait_until(lambda said=said: tree.said(said), said)  # a thread of the test reads what the tree writes
            wait_until(lambda: ask(tree).returncode == 0, f"an answer after {service} was killed", within_s=120)


def test_ctrl_c_stops_everything_and_leaves_nothing(tmp_path):
    with running_tree(tmp_path, "--engine", "simulated") as tree:
        wait_until(lambda: tree.said("batch ready"), "the last service serves", within_s=90)
        children = tree.processes()
        assert len(children) == 6
        tree.process.send_signal(signal.SIGINT)
        assert tree.process.wait(30) == 0
        assert not any(child.is_running() for child in children)
        assert not (tmp_path / ".railbus" / "up.json").exists()
        assert not tree.said("killed"), tree.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_supervisor_that_is_killed_takes_everything_with_it(tmp_path):
    with running_tree(tmp_path, "--engine", "simulated") as tree:
        children = tree.processes()
        os.kill(tree.process.pid, signal.SIGKILL)
        psutil.wait_procs(children, timeout=60)
        assert not any(child.is_running() for child in children)
    with running_tree(tmp_path, "--engine", "simulated") as again:
        assert ask(again).returncode == 0


def test_a_second_tree_in_the_same_folder_is_refused(tree):
    done = tree.railbus("up", "--port", "0", "--engine", "simulated")
    assert done.returncode == 2
    assert f"process {tree.process.pid} at {tree.url}" in done.stderr


def test_a_service_that_cannot_run_ends_the_tree_with_its_message(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "up", "--port", "0", "--model-path", "/nowhere.gguf"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, env=bare_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "railbus up: generator cannot run: " in done.stderr
    assert "/nowhere.gguf" in done.stderr.splitlines()[-1]
    assert "ready" not in done.stdout


def test_the_log_outlives_the_tree_where_it_is_told_to(tmp_path):
    for _ in range(2):
        with running_tree(tmp_path, "--engine", "simulated", "--data-dir", str(tmp_path / "kept")) as tree:
            assert ask(tree).returncode == 0
            done = tree.railbus("tail", "--topic", "requests", "--from", "beginning", "--no-follow")
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.llama
def test_a_real_model_answers_once_and_the_tree_ends(tmp_path):
    pytest.importorskip("xllamacpp", exc_type=ImportError)
    done = subprocess.run(
        [
            sys.executable, "-m", "services.cli", "up", "--port", "0", "--no-governed", "--once",
            "--ask", "Name one planet.",
        ],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, env=bare_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "> Name one planet." in done.stdout
    assert len(done.stdout.split("> Name one planet.")[1].split()) > 2
    assert "completed, first token after" in done.stderr
