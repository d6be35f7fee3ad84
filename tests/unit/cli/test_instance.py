import subprocess
import sys

import pytest

from services.cli.instance import Instance, find, record, sole
from services.runtime import UserError

TREE = Instance(pid=1, url="http://127.0.0.1:8080", kafka="127.0.0.1:9092", partitions=4, pids={"edge": 7})

HOLD = """
import sys, time
from pathlib import Path
from services.cli.instance import Instance, record, sole
folder = Path(sys.argv[1])
with sole(folder):
    record(Instance(pid=1, url="u", kafka="k", partitions=4), folder)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_tree_is_found_while_it_runs_and_not_after(tmp_path):
    assert find(tmp_path) is None
    with sole(tmp_path):
        assert find(tmp_path) is None
        record(TREE, tmp_path)
        assert find(tmp_path) == TREE
    assert find(tmp_path) is None


def test_a_second_tree_is_refused_and_the_first_is_named(tmp_path):
    with sole(tmp_path):
        with pytest.raises(UserError, match="it is starting"), sole(tmp_path):
            pass
        record(TREE, tmp_path)
        with pytest.raises(UserError, match=r"process 1 at http://127.0.0.1:8080.*RAILBUS_STATE_DIR"), sole(tmp_path):
            pass
        assert find(tmp_path) == TREE


def test_what_a_killed_supervisor_left_is_no_tree(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            assert find(tmp_path).url == "u"
        finally:
            holder.kill()
    assert (tmp_path / "up.json").exists()
    assert find(tmp_path) is None
    with sole(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"unknown": 1}'])
def test_a_file_that_is_none_counts_as_none(tmp_path, text):
    with sole(tmp_path):
        (tmp_path / "up.json").write_text(text)
        assert find(tmp_path) is None
