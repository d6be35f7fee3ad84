"""Test the folder that stores the input and output files of jobs."""

import os
import subprocess
import sys
import time

from services.jobs.store import ABANDONED_S, FolderStore

KILLED = """
import os, sys
from pathlib import Path
from services.jobs.store import FolderStore
with FolderStore(Path(sys.argv[1])).writing("file-1", "acme", "a.jsonl", "batch", 1) as file:
    file.write(b"a prompt")
    file.flush()
    os._exit(9)
"""


def test_what_a_killed_process_left_of_a_file_is_removed(tmp_path):
    """A killed process's unfinished file is removed after some time, because no tenant sees it or can delete it."""
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    (part,) = (tmp_path / "files").iterdir()
    FolderStore(tmp_path)
    assert part.exists()  # another process may be writing it
    since = time.time() - ABANDONED_S - 60
    os.utime(part, (since, since))
    FolderStore(tmp_path)
    assert not part.exists()


def test_a_complete_file_stays_however_old_it_is(tmp_path):
    with FolderStore(tmp_path).writing("file-1", "acme", "a.jsonl", "batch", 1) as file:
        file.write(b"a prompt")
    for path in (tmp_path / "files").iterdir():
        os.utime(path, (0, 0))
    assert [file.file_id for file in FolderStore(tmp_path).files("acme")] == ["file-1"]


def test_a_tenant_sees_its_own_files_newest_first(tmp_path):
    store = FolderStore(tmp_path)
    for number, tenant in enumerate(["acme", "other", "acme"]):
        with store.writing(f"file-{number}", tenant, "a.jsonl", "batch", number) as file:
            file.write(b"a prompt")
    assert [file.file_id for file in store.files("acme")] == ["file-2", "file-0"]
    store.delete("file-2")
    assert [file.file_id for file in store.files("acme")] == ["file-0"]
