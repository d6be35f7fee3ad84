"""Tests of how the input of a job is stored before the job is created, and of the connection to the batch service."""

import asyncio
import errno
from functools import partial
from types import SimpleNamespace

import pytest

from services.bus import BusSettings
from services.cli.batch import client
from services.cli.batch.client import JobClient, input_file_id, job_store, store_input
from services.cli.batch.inputs import InputOptions, write_lines
from services.cli.batch.runner import JobInput, JobOptions, submit
from services.cli.tree.state_file import RunningTree, tree_lock, write_state
from services.jobs.prepare import JobLines
from services.jobs.store import FolderStore
from services.runtime.errors import UserError
from tests.unit.batch.world import BATCH_ID


def test_a_run_that_is_repeated_before_its_job_has_its_new_options(tmp_path):
    path, store = tmp_path / "prompts.txt", FolderStore(tmp_path / "batch")
    path.write_text("Why?\n", encoding="utf-8")
    for model in ("first", "the second"):
        write = partial(write_lines, path, InputOptions(body={"model": model}))
        store_input(store, BATCH_ID, path.name, write)
        lines = JobLines(store, BATCH_ID, input_file_id(BATCH_ID))
        assert lines.line(0).model == model
        lines.close()


async def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    path, store = tmp_path / "prompts.txt", FolderStore(tmp_path / "batch")
    path.write_text("Why?\n", encoding="utf-8")

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store, "writing", denied)
    given = JobInput(source=path, options_hash="", write=partial(write_lines, path, InputOptions(body={})))
    options = JobOptions(window_open=1, line_attempts=1, completion_ms=1)
    with pytest.raises(UserError, match=r"RAILBUS_BATCH_DIR.*Permission denied"):
        await submit(SimpleNamespace(store=store), BATCH_ID, given, options)


@pytest.mark.parametrize(
    ("kafka", "batch_dir", "used"),
    [
        (None, "tree", "tree"),
        ("127.0.0.1:9092", "tree", "tree"),
        ("other:9092", "tree", "named"),
        (None, None, "named"),
    ],
)
def test_the_folder_is_that_of_the_batch_service_at_the_broker(tmp_path, monkeypatch, kafka, batch_dir, used):
    monkeypatch.setenv("RAILBUS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("RAILBUS_BATCH_DIR", str(tmp_path / "named"))
    with tree_lock(tmp_path / "state"):
        folder = None if batch_dir is None else str(tmp_path / batch_dir)
        tree = RunningTree(pid=1, url="u", kafka="127.0.0.1:9092", partitions=4, batch_dir=folder)
        write_state(tree, tmp_path / "state")
        job_store(kafka)
    assert [each.name for each in tmp_path.iterdir() if each.name != "state"] == [used]


def test_the_folder_of_another_brokers_batch_service_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("RAILBUS_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("RAILBUS_BATCH_DIR", raising=False)
    with tree_lock(tmp_path):
        batch_dir = str(tmp_path / "batch")
        write_state(RunningTree(pid=1, url="u", kafka="127.0.0.1:9092", partitions=4, batch_dir=batch_dir), tmp_path)
        with pytest.raises(UserError, match=r"runs here with the broker other:1: .* RAILBUS_BATCH_DIR$"):
            job_store("other:1")


@pytest.mark.parametrize("late", [False, True])
async def test_a_refused_reader_ends_the_command_with_its_reason(tmp_path, monkeypatch, late):
    class Connected:
        def __init__(self, *_, **__):
            self.caught_up = asyncio.Event()

        async def start(self):
            pass

        stop = start

        async def run(self):
            if late:
                self.caught_up.set()
                await asyncio.sleep(0.01)
            raise UserError("the broker does not let this user read topic railbus.batches")

    monkeypatch.setattr(client, "Producer", Connected)
    monkeypatch.setattr(client, "JobReader", Connected)
    with pytest.raises(UserError, match=r"does not let this user read topic railbus\.batches"):
        async with asyncio.timeout(10), JobClient.opened(BusSettings(), FolderStore(tmp_path)):
            await asyncio.Event().wait()
