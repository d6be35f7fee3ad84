"""Test that ``railbus batch`` runs, pauses, resumes, cancels and lists jobs, and continues a job after a crash."""

import json
import signal
import subprocess
import sys

import pytest
from pyarrow import parquet

from tests.support.processes import bare_environment
from tests.support.tree import running_tree
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    with running_tree(tmp_path_factory.mktemp("batch"), "--engine", "simulated", RAILBUS_SIM_TIME_SCALE="0.05") as tree:
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", within_s=90)
        yield tree


def start(tree, *args):
    return subprocess.Popen(
        [sys.executable, "-m", "services.cli", "batch", *args], cwd=tree.folder, env=bare_environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_plain_prompts_are_answered_in_their_order(tree):
    (tree.folder / "prompts.txt").write_text("".join(f"Question {n}?\n" for n in range(20)))
    done = tree.railbus(
        "batch", "run", "prompts.txt", "--out", "plain", "--max-tokens", "5", "--price", "gpt-4o-mini, tier 4"
    )
    assert done.returncode == 0, done.stderr
    out = tree.folder / "plain"
    assert [row["custom_id"] for row in read(out / "results.jsonl")] == [f"line-{n + 1}" for n in range(20)]
    assert (out / "errors.jsonl").read_text() == ""
    table = parquet.read_table(out / "results.parquet").to_pylist()
    assert [row["content"] for row in table] == [
        row["response"]["body"]["choices"][0]["message"]["content"] for row in read(out / "results.jsonl")
    ]
    assert "20/20" in done.stderr
    assert "$" in done.stderr


def test_a_table_needs_a_template_and_names_its_columns(tree):
    (tree.folder / "table.csv").write_text('id,text\nx,"one, two"\ny,three\n')
    refused = tree.railbus("batch", "submit", "table.csv")
    assert refused.returncode == 2
    assert "--template" in refused.stderr
    wrong = tree.railbus("batch", "submit", "table.csv", "--template", "Say {word}")
    assert "no column 'word'" in wrong.stderr
    given = ("--template", "Say {text}", "--id-column", "id")
    done = tree.railbus("batch", "run", "table.csv", "--out", "table", *given)
    assert done.returncode == 0, done.stderr
    assert [row["custom_id"] for row in read(tree.folder / "table" / "results.jsonl")] == ["x", "y"]


def test_a_name_that_is_there_twice_is_refused_with_its_lines(tree):
    (tree.folder / "twice.csv").write_text("id,text\nx,one\nx,two\n")
    refused = tree.railbus("batch", "run", "twice.csv", "--out", "twice", "--template", "{text}", "--id-column", "id")
    assert refused.returncode == 2
    assert "Line 2: the custom_id 'x' is also on line 1." in refused.stderr
    assert "twice" not in tree.railbus("batch", "list").stdout


def test_run_goes_on_where_it_was_killed(tree):
    (tree.folder / "many.txt").write_text("".join(f"Question {n}?\n" for n in range(300)))
    # Slow lines: the job lasts longer than it takes to see that it runs, and to kill it.
    args = ("run", "many.txt", "--out", "many", "--window", "8", "--model", "simulated-n4-slow300")
    first = start(tree, *args)
    note = tree.folder / "many" / "job.json"
    wait_until(note.exists, "the job is noted", within_s=60)
    batch_id = json.loads(note.read_text())["batch_id"]

    def completed():  # a job is noted before it is on the log
        jobs = json.loads(tree.railbus("batch", "list", "--json").stdout)
        return next((job["completed"] for job in jobs if job["batch_id"] == batch_id), 0)

    wait_until(lambda: completed() > 5, "it runs", within_s=60)
    first.send_signal(signal.SIGKILL)
    first.wait()
    tree.kill("batch")
    before = len(json.loads(tree.railbus("batch", "list", "--json").stdout))
    done = tree.railbus("batch", *args, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(tree.railbus("batch", "list", "--json").stdout)) == before
    names = [row["custom_id"] for row in read(tree.folder / "many" / "results.jsonl")]
    assert names == [f"line-{n + 1}" for n in range(300)]


def test_a_job_is_paused_resumed_and_cancelled(tree):
    (tree.folder / "long.txt").write_text("".join(f"Question {n}?\n" for n in range(5_000)))
    slow = ("--model", "simulated-n4-slow500")  # it must not end before it is paused
    batch_id = tree.railbus("batch", "submit", "long.txt", "--window", "4", *slow).stdout.strip()

    def status():
        return json.loads(tree.railbus("batch", "status", batch_id, "--json").stdout)["status"]

    wait_until(lambda: status() == "in_progress", "it runs")
    tree.railbus("batch", "pause", batch_id)
    assert status() == "paused"
    assert tree.railbus("batch", "results", batch_id, "--out", "long").returncode == 2
    tree.railbus("batch", "resume", batch_id)
    assert status() == "in_progress"
    tree.railbus("batch", "cancel", batch_id)
    wait_until(lambda: status() == "cancelled", "it has ended", within_s=60)
    ended = tree.railbus("batch", "results", batch_id, "--out", "long")
    assert ended.returncode == 1
    out = tree.folder / "long"
    assert len(read(out / "results.jsonl")) + len(read(out / "errors.jsonl")) == 5_000
    assert {row["error"]["code"] for row in read(out / "errors.jsonl")} == {"batch_cancelled"}


def test_a_mistake_is_one_sentence(tree):
    missing = tree.railbus("batch", "status", "batch_nobody")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "railbus batch list" in missing.stderr
