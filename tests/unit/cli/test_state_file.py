import errno
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.tree import state_file
from services.cli.tree.state_file import RunningTree, find_running_tree, scrape_targets, tree_lock, write_state
from services.runtime import UserError

TREE = RunningTree(pid=1, url="http://127.0.0.1:8080", kafka="127.0.0.1:9092", partitions=4, pids={"edge": 7})

HOLD = """
import sys, time
from pathlib import Path
from services.cli.tree.state_file import RunningTree, tree_lock, write_state
folder = Path(sys.argv[1])
with tree_lock(folder):
    write_state(RunningTree(pid=1, url="u", kafka="k", partitions=4), folder)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_tree_is_found_while_it_runs_and_not_after(tmp_path):
    assert find_running_tree(tmp_path) is None
    with tree_lock(tmp_path):
        assert find_running_tree(tmp_path) is None
        write_state(TREE, tmp_path)
        assert find_running_tree(tmp_path) == TREE
    assert find_running_tree(tmp_path) is None


def test_the_state_of_a_killed_tree_is_not_that_of_the_next(tmp_path):
    write_state(TREE, tmp_path)
    with tree_lock(tmp_path):
        assert find_running_tree(tmp_path) is None
        assert not (tmp_path / "scrape.json").exists()
        with pytest.raises(UserError, match="it is starting"), tree_lock(tmp_path):
            pass


def test_only_the_owner_reads_the_state_as_it_may_have_a_password(tmp_path):
    (tmp_path / "up.json.new").write_text("left by a killed process")
    with tree_lock(tmp_path):
        write_state(TREE, tmp_path)
        modes = [(tmp_path / name).stat().st_mode & 0o077 for name in ("up.json", "scrape.json")]
    assert modes[0] == 0
    assert modes[1] & 0o044  # a Prometheus of another user reads it


def test_prometheus_finds_every_process_while_the_tree_runs(tmp_path):
    tree = RunningTree(
        pid=1, url="http://127.0.0.1:8080", kafka="k", partitions=4, edges=["http://127.0.0.1:8080", "http://127.0.0.1:81"],
        health={"router": "http://127.0.0.1:9", "router-2": "http://127.0.0.1:10"},
    )  # fmt: skip
    with tree_lock(tmp_path):
        write_state(tree, tmp_path)
        found = json.loads((tmp_path / "scrape.json").read_text())
    assert not (tmp_path / "scrape.json").exists()
    assert found == scrape_targets(tree)
    assert [(each["targets"], each["labels"]["service"], each["labels"]["process"]) for each in found] == [
        (["127.0.0.1:8080"], "edge", "edge"),
        (["127.0.0.1:81"], "edge", "edge-2"),
        (["127.0.0.1:9"], "router", "router"),
        (["127.0.0.1:10"], "router", "router-2"),
    ]


def test_prometheus_is_told_that_an_edge_speaks_https():
    tree = RunningTree(pid=1, url="https://127.0.0.1:81", kafka="k", partitions=4, edges=["https://127.0.0.1:81"])
    labels = {"service": "edge", "process": "edge", "__scheme__": "https"}
    assert scrape_targets(tree) == [{"targets": ["127.0.0.1:81"], "labels": labels}]


def test_a_second_tree_is_refused_and_the_first_is_named(tmp_path):
    with tree_lock(tmp_path):
        with pytest.raises(UserError, match="it is starting"), tree_lock(tmp_path):
            pass
        write_state(TREE, tmp_path)
        with (
            pytest.raises(UserError, match=r"process 1 at http://127.0.0.1:8080.*RAILBUS_STATE_DIR"),
            tree_lock(tmp_path),
        ):
            pass
        assert find_running_tree(tmp_path) == TREE


def test_a_command_that_looks_for_a_tree_keeps_none_from_starting(tmp_path, monkeypatch):
    (tmp_path / "up.lock").touch()
    with (tmp_path / "up.lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(state_file.time, "sleep", lambda _: looking.close())
        with tree_lock(tmp_path):
            pass


def test_what_a_killed_supervisor_left_is_no_tree(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            assert find_running_tree(tmp_path).url == "u"
        finally:
            holder.kill()
    assert (tmp_path / "up.json").exists()
    assert find_running_tree(tmp_path) is None
    with tree_lock(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"unknown": 1}'])
def test_a_file_that_is_none_counts_as_none(tmp_path, text):
    with tree_lock(tmp_path):
        (tmp_path / "up.json").write_text(text)
        assert find_running_tree(tmp_path) is None


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").write_text("")
    said = r"^the state folder .*file/state cannot be written \(Not a directory\): make it writable.*RAILBUS_STATE_DIR$"
    with pytest.raises(UserError, match=said), tree_lock(tmp_path / "file" / "state"):
        pass


def test_a_full_disk_is_named_with_the_remedy(tmp_path, monkeypatch):
    def write_text(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with tree_lock(tmp_path):
        monkeypatch.setattr(Path, "write_text", write_text)
        with pytest.raises(UserError, match=r"cannot be written \(No space left on device\): free some space"):
            write_state(TREE, tmp_path)
