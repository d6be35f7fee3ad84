"""Test that answers can be audited after a restart of ``railbus up``, until ``--forget`` deletes the log."""

import json
import subprocess
import sys

import pytest

from tests.e2e.patience import PATIENT_ROUTER, patient_policy
from tests.support.processes import bare_environment
from tests.support.tree import running_tree
from tests.support.waiting import wait_until

ENGINE = ("--engine", "simulated", "--no-redis")
QUESTION = ("Name the seasons.", "--model", "simulated-n8", "--json")


def ask(tree):
    """Ask a question, wait until the log has the request's ``Detached`` and ``Account``, and return the request id."""
    done = tree.railbus("ask", *QUESTION)
    assert done.returncode == 0, done.stderr
    request_id = json.loads(done.stdout.splitlines()[0])["request_id"]

    def is_all_there():
        shown = audit(tree, request_id).stdout
        return "Detached" in shown and "Account" in shown

    wait_until(is_all_there, "the connection's receipt and the account", 90)
    return request_id


def audit(tree, request_id, *more):
    return tree.railbus("audit", "show", request_id, *more)


@pytest.mark.slow
def test_answers_can_be_audited_after_the_tree_was_started_again(tmp_path):
    patient = PATIENT_ROUTER | {"RAILBUS_POLICY": str(patient_policy(tmp_path))}
    with running_tree(tmp_path, *ENGINE, governed=True, start_s=240, **patient) as tree:
        first = ask(tree)
        before = json.loads(audit(tree, first, "--json").stdout)
    with running_tree(tmp_path, *ENGINE, governed=True, start_s=240, **patient) as tree:
        assert json.loads(audit(tree, first, "--json").stdout) == before
        assert "Finished" in audit(tree, first).stdout
        second = ask(tree)
        for service in tree.state["pids"]:
            assert tree.stderr.count(f"{service} ended") == 0
    with running_tree(tmp_path, *ENGINE, "--forget", start_s=240) as tree:
        for request_id in (first, second):
            done = audit(tree, request_id)
            assert (done.returncode, done.stdout) == (1, "")
        third = ask(tree)
        assert audit(tree, third).returncode == 0


@pytest.mark.slow
def test_two_trees_do_not_share_a_log(tmp_path):
    log, other = tmp_path / "log", tmp_path / "other"
    other.mkdir()
    with running_tree(tmp_path, *ENGINE, "--data-dir", str(log), start_s=240):
        for more in ((), ("--forget",)):
            done = subprocess.run(
                [sys.executable, "-m", "services.cli", "up", "--port", "0", "--no-governed", *ENGINE,
                 "--data-dir", str(log), *more],
                capture_output=True, text=True, timeout=60, cwd=other, check=False, env=bare_environment(),
            )  # fmt: skip
            assert done.returncode == 2
            assert f"the log in {log} is in use by another broker" in done.stderr
            assert "Traceback" not in done.stderr
